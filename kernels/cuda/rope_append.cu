// Rotary embedding of Q and K in place, and K and V to the paged cache. A thread has eight pairs of a head,
// or sixteen elements of V, in 16-byte accesses; where heads are too small for that, a block a token walks
// single pairs. The cached K is rounded once, from the rotated float.
#include "kernels/cuda/cuda_op_state.h"
#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/rotate.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/rotation.h"

namespace llm_dist::kernels {
namespace {

template <typename T, typename Kv>
__global__ void rope_append(Rotation rotation) {
  const int64_t token = blockIdx.x;
  const int32_t slot = rotation.slots[token];
  if (slot < 0) return;
  const float* cos_sin = rotation.cos_sin + rotation.positions[token] * rotation.cos_sin_stride;
  const int head_dim = rotation.head_dim;
  const int half = head_dim / 2;
  T* row = static_cast<T*>(rotation.qkv) + token * rotation.row_stride;
  const int num_rotated = (rotation.num_heads + rotation.num_kv_heads) * half;
  const int step = static_cast<int>(blockDim.x);
  for (int p = static_cast<int>(threadIdx.x); p < num_rotated; p += step) {
    const int head = p / half;
    const int i = p % half;
    T* x = row + head * head_dim + i;
    float first = to_float_dev(x[0]);
    float second = to_float_dev(x[half]);
    rotate_pair(first, second, cos_sin[i], cos_sin[half + i]);
    x[0] = from_float_dev<T>(first);
    x[half] = from_float_dev<T>(second);
    if (head >= rotation.num_heads) {
      Kv* to =
          static_cast<Kv*>(rotation.k_cache) + rotation.cache_offset(slot, head - rotation.num_heads) + i;
      to[0] = from_float_dev<Kv>(first);
      to[half] = from_float_dev<Kv>(second);
    }
  }
  const T* v = row + (rotation.num_heads + rotation.num_kv_heads) * head_dim;
  for (int p = static_cast<int>(threadIdx.x); p < rotation.num_kv_heads * head_dim; p += step) {
    Kv* to = static_cast<Kv*>(rotation.v_cache) + rotation.cache_offset(slot, p / head_dim) + p % head_dim;
    *to = from_float_dev<Kv>(to_float_dev(v[p]));
  }
}

constexpr int kVectorThreads = 128;

// Grid: tokens × blocks of threads over (head, piece).
template <typename T, typename Kv>
__global__ void __launch_bounds__(kVectorThreads) rope_append_vectors(Rotation rotation) {
  const int64_t token = blockIdx.x;
  const int32_t slot = rotation.slots[token];
  const int half = rotation.head_dim / 2;
  const int pieces = half / kVecWidth;
  const int index = static_cast<int>(blockIdx.y) * kVectorThreads + static_cast<int>(threadIdx.x);
  const int head = index / pieces;
  const int i = index % pieces * kVecWidth;
  const int kv_head = head - rotation.num_heads;
  const bool rotates = kv_head < rotation.num_kv_heads;
  float cosine[kVecWidth] = {};
  float sine[kVecWidth] = {};
  if (rotates && slot >= 0) {
    const float* cos_sin = rotation.cos_sin + rotation.positions[token] * rotation.cos_sin_stride + i;
    load_vec<kVecWidth>(cos_sin, cosine);
    load_vec<kVecWidth>(cos_sin + half, sine);
  }
  let_next_start();  // attention has older keys to fetch meanwhile
  wait_for_previous();
  if (slot < 0 || kv_head >= 2 * rotation.num_kv_heads) return;
  T* x = static_cast<T*>(rotation.qkv) + token * rotation.row_stride + head * rotation.head_dim + i;
  float a[kVecWidth];
  float b[kVecWidth];
  load_vec<kVecWidth>(x, a);
  load_vec<kVecWidth>(x + half, b);
  if (!rotates) {
    Kv* to =
        static_cast<Kv*>(rotation.v_cache) + rotation.cache_offset(slot, kv_head - rotation.num_kv_heads) + i;
    store_vec<kVecWidth>(a, to);
    store_vec<kVecWidth>(b, to + half);
    return;
  }
#pragma unroll
  for (int v = 0; v < kVecWidth; ++v) rotate_pair(a[v], b[v], cosine[v], sine[v]);
  store_vec<kVecWidth>(a, x);
  store_vec<kVecWidth>(b, x + half);
  if (kv_head < 0) return;
  Kv* to = static_cast<Kv*>(rotation.k_cache) + rotation.cache_offset(slot, kv_head) + i;
  store_vec<kVecWidth>(a, to);
  store_vec<kVecWidth>(b, to + half);
}

bool is_aligned(const RopeAppendParams& params) {
  const Tensor& k = params.k_cache;
  auto begins_aligned = [](const Tensor& tensor) {
    return reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0;
  };
  return k.dim(3) % (2 * kVecWidth) == 0 && is_vectorizable(params.qkv) && begins_aligned(k) &&
         begins_aligned(params.v_cache) && begins_aligned(params.cos_sin) && k.stride(0) % kVecWidth == 0 &&
         k.stride(1) % kVecWidth == 0 && params.cos_sin.stride(0) % 4 == 0;
}

void check_rope(const RopeAppendParams& params) {
  const Tensor& k = params.k_cache;
  CHECK(k.rank == 4 && k.stride(3) == 1 && (k.dim(2) == 1 || k.stride(2) == k.dim(3)),
        "KV cache {}",
        k.to_string());
  CHECK(params.v_cache.dtype == k.dtype && params.v_cache.shape == k.shape &&
            params.v_cache.strides == k.strides,
        "K {} and V {}",
        k.to_string(),
        params.v_cache.to_string());
  CHECK_EQ(k.dim(1), int64_t{params.num_kv_heads});
  CHECK_EQ(params.qkv.dim(1), (params.num_heads + 2 * params.num_kv_heads) * k.dim(3));
  CHECK_EQ(k.dim(3) % 2, 0);
  CHECK_EQ(params.cos_sin.dim(1), k.dim(3));
  check_rows(params.qkv);
}

Rotation rotation_of(const RopeAppendParams& params) {
  const Tensor& k = params.k_cache;
  const int64_t n = params.qkv.dim(0);
  return {.dtype = params.qkv.dtype,
          .cache_dtype = k.dtype,
          .qkv = params.qkv.data,
          .row_stride = params.qkv.stride(0),
          .num_tokens = n,
          .positions = i32_vector(params.positions, n),
          .slots = i32_vector(params.kv_slots, n),
          .cos_sin = params.cos_sin.as<float>(),
          .cos_sin_stride = params.cos_sin.stride(0),
          .num_heads = params.num_heads,
          .num_kv_heads = params.num_kv_heads,
          .head_dim = static_cast<int>(k.dim(3)),
          .block_size = static_cast<int>(k.dim(2)),
          .block_stride = k.stride(0),
          .head_stride = k.stride(1),
          .k_cache = k.data,
          .v_cache = params.v_cache.data,
          .aligned = is_aligned(params)};
}

cudaError_t launch_rotation(const Rotation& rotation, cudaStream_t stream) {
  const auto tokens = static_cast<unsigned>(rotation.num_tokens);
  with_activation_type(rotation.dtype, [&](auto type) {
    using T = decltype(type);
    with_kv_type<T>(rotation.dtype, rotation.cache_dtype, [&](auto kv_type) {
      using Kv = decltype(kv_type);
      if (rotation.aligned) {
        const int64_t pieces = rotation.columns() / (2 * kVecWidth);
        const dim3 grid(tokens, static_cast<unsigned>(ceil_div(pieces, kVectorThreads)));
        launch_overlapped(rope_append_vectors<T, Kv>, grid, kVectorThreads, stream, rotation);
      } else {
        const int threads = threads_for(rotation.columns() / 2, 256);
        rope_append<T, Kv><<<tokens, threads, 0, stream>>>(rotation);
      }
    });
  });
  return cudaGetLastError();
}

}  // namespace

void rope_append_cuda(OpState& state, device::Stream& stream, const RopeAppendParams& params) {
  check_rope(params);
  device::CudaStream& cuda = device::as_cuda(stream);
  const Rotation rotation = rotation_of(params);
  if (rotation.num_tokens == 0) return;
  if (rotation.num_tokens == 1 && as_cuda_state(state).fused_row().put_off(rotation, cuda)) return;
  if (!cuda.enter()) return;
  cuda.check(launch_rotation(rotation, cuda.handle()), "rope_append");
}

}  // namespace llm_dist::kernels
