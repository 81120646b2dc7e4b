// Rotary embedding of Q and K in place, and K and V to the paged cache. A thread has eight pairs of a head,
// or sixteen elements of V, in 16-byte accesses; where heads are too small for that, a block a token walks
// single pairs. The cached K is rounded once, from the rotated float.
#include "kernels/cuda/cuda_op_state.h"
#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

namespace llm_dist::kernels {
namespace {

struct CacheShape {
  int block_size;
  int head_dim;
  int64_t block_stride;  // in elements
  int64_t head_stride;
};

struct RopeTokens {
  const int32_t* positions;
  const int32_t* slots;
  const float* cos_sin;
  int64_t cos_sin_stride;
  int num_heads;
  int num_kv_heads;
};

template <typename T, typename Kv>
__global__ void rope_append(RowView<T> qkv, RopeTokens tokens, CacheShape shape, Kv* k_cache, Kv* v_cache) {
  const int64_t token = blockIdx.x;
  const int32_t slot = tokens.slots[token];
  if (slot < 0) return;
  const float* cos_sin = tokens.cos_sin + tokens.positions[token] * tokens.cos_sin_stride;
  const int half = shape.head_dim / 2;
  const int64_t block_at = slot / shape.block_size * shape.block_stride;
  const int64_t offset_at = static_cast<int64_t>(slot % shape.block_size) * shape.head_dim;
  T* row = qkv.row(token);
  const int num_rotated = (tokens.num_heads + tokens.num_kv_heads) * half;
  const int step = static_cast<int>(blockDim.x);
  for (int p = static_cast<int>(threadIdx.x); p < num_rotated; p += step) {
    const int head = p / half;
    const int i = p % half;
    T* x = row + head * shape.head_dim + i;
    const float a = to_float_dev(x[0]);
    const float b = to_float_dev(x[half]);
    const float cosine = cos_sin[i];
    const float sine = cos_sin[half + i];
    const float first = a * cosine - b * sine;
    const float second = b * cosine + a * sine;
    x[0] = from_float_dev<T>(first);
    x[half] = from_float_dev<T>(second);
    if (head >= tokens.num_heads) {
      Kv* to = k_cache + block_at + (head - tokens.num_heads) * shape.head_stride + offset_at + i;
      to[0] = from_float_dev<Kv>(first);
      to[half] = from_float_dev<Kv>(second);
    }
  }
  const T* v = row + (tokens.num_heads + tokens.num_kv_heads) * shape.head_dim;
  for (int p = static_cast<int>(threadIdx.x); p < tokens.num_kv_heads * shape.head_dim; p += step) {
    const int head = p / shape.head_dim;
    const int i = p % shape.head_dim;
    v_cache[block_at + head * shape.head_stride + offset_at + i] = from_float_dev<Kv>(to_float_dev(v[p]));
  }
}

constexpr int kVectorThreads = 128;

// Grid: tokens × blocks of threads over (head, piece).
template <typename T, typename Kv>
__global__ void __launch_bounds__(kVectorThreads)
    rope_append_vectors(RowView<T> qkv, RopeTokens tokens, CacheShape shape, Kv* k_cache, Kv* v_cache) {
  const int64_t token = blockIdx.x;
  const int32_t slot = tokens.slots[token];
  const int half = shape.head_dim / 2;
  const int pieces = half / kVecWidth;
  const int index = static_cast<int>(blockIdx.y) * kVectorThreads + static_cast<int>(threadIdx.x);
  const int head = index / pieces;
  const int i = index % pieces * kVecWidth;
  const int kv_head = head - tokens.num_heads;
  const bool rotates = kv_head < tokens.num_kv_heads;
  float cosine[kVecWidth] = {};
  float sine[kVecWidth] = {};
  if (rotates && slot >= 0) {
    const float* cos_sin = tokens.cos_sin + tokens.positions[token] * tokens.cos_sin_stride + i;
    load_vec<kVecWidth>(cos_sin, cosine);
    load_vec<kVecWidth>(cos_sin + half, sine);
  }
  let_next_start();  // attention has older keys to fetch meanwhile
  wait_for_previous();
  if (slot < 0 || kv_head >= 2 * tokens.num_kv_heads) return;
  T* x = qkv.row(token) + head * shape.head_dim + i;
  float a[kVecWidth];
  float b[kVecWidth];
  load_vec<kVecWidth>(x, a);
  load_vec<kVecWidth>(x + half, b);
  const int64_t cache_at = slot / shape.block_size * shape.block_stride +
                           static_cast<int64_t>(slot % shape.block_size) * shape.head_dim + i;
  if (!rotates) {
    Kv* to = v_cache + cache_at + (kv_head - tokens.num_kv_heads) * shape.head_stride;
    store_vec<kVecWidth>(a, to);
    store_vec<kVecWidth>(b, to + half);
    return;
  }
#pragma unroll
  for (int v = 0; v < kVecWidth; ++v) {
    const float first = a[v] * cosine[v] - b[v] * sine[v];
    b[v] = b[v] * cosine[v] + a[v] * sine[v];
    a[v] = first;
  }
  store_vec<kVecWidth>(a, x);
  store_vec<kVecWidth>(b, x + half);
  if (kv_head < 0) return;
  Kv* to = k_cache + cache_at + kv_head * shape.head_stride;
  store_vec<kVecWidth>(a, to);
  store_vec<kVecWidth>(b, to + half);
}

bool takes_vectors(const RopeAppendParams& params) {
  const Tensor& k = params.k_cache;
  auto is_aligned = [](const Tensor& tensor) { return reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0; };
  return k.dim(3) % (2 * kVecWidth) == 0 && is_vectorizable(params.qkv) && is_aligned(k) &&
         is_aligned(params.v_cache) && is_aligned(params.cos_sin) && k.stride(0) % kVecWidth == 0 &&
         k.stride(1) % kVecWidth == 0 && params.cos_sin.stride(0) % 4 == 0;
}

CacheShape cache_shape(const Tensor& cache) {
  CHECK(cache.rank == 4 && cache.stride(3) == 1 && (cache.dim(2) == 1 || cache.stride(2) == cache.dim(3)),
        "KV cache {}",
        cache.to_string());
  return {static_cast<int>(cache.dim(2)), static_cast<int>(cache.dim(3)), cache.stride(0), cache.stride(1)};
}

void check_rope(const RopeAppendParams& params) {
  const int64_t head_dim = params.k_cache.dim(3);
  CHECK(params.v_cache.dtype == params.k_cache.dtype && params.v_cache.shape == params.k_cache.shape &&
            params.v_cache.strides == params.k_cache.strides,
        "K {} and V {}",
        params.k_cache.to_string(),
        params.v_cache.to_string());
  CHECK_EQ(params.k_cache.dim(1), int64_t{params.num_kv_heads});
  CHECK_EQ(params.qkv.dim(1), (params.num_heads + 2 * params.num_kv_heads) * head_dim);
  CHECK_EQ(head_dim % 2, 0);
  CHECK_EQ(params.cos_sin.dim(1), head_dim);
}

RowRotation rotation_of(const RopeAppendParams& params, const RopeTokens& tokens, const CacheShape& shape) {
  return {.dtype = params.qkv.dtype,
          .cache_dtype = params.k_cache.dtype,
          .qkv = params.qkv.data,
          .position = tokens.positions,
          .slot = tokens.slots,
          .cos_sin = tokens.cos_sin,
          .cos_sin_stride = tokens.cos_sin_stride,
          .num_heads = tokens.num_heads,
          .num_kv_heads = tokens.num_kv_heads,
          .head_dim = shape.head_dim,
          .block_size = shape.block_size,
          .block_stride = shape.block_stride,
          .head_stride = shape.head_stride,
          .k_cache = params.k_cache.data,
          .v_cache = params.v_cache.data};
}

}  // namespace

void rope_append_cuda(OpState& state, device::Stream& stream, const RopeAppendParams& params) {
  check_rope(params);
  const int64_t n = params.qkv.dim(0);
  const RopeTokens tokens{.positions = i32_vector(params.positions, n),
                          .slots = i32_vector(params.kv_slots, n),
                          .cos_sin = params.cos_sin.as<float>(),
                          .cos_sin_stride = params.cos_sin.stride(0),
                          .num_heads = params.num_heads,
                          .num_kv_heads = params.num_kv_heads};
  device::CudaStream& cuda = device::as_cuda(stream);
  if (n == 0) return;
  const CacheShape shape = cache_shape(params.k_cache);
  if (n == 1 && as_cuda_state(state).fused_row().put_off(rotation_of(params, tokens, shape), cuda)) return;
  if (!cuda.enter()) return;
  if (takes_vectors(params)) {
    const int64_t pieces = (params.num_heads + 2 * params.num_kv_heads) * shape.head_dim / (2 * kVecWidth);
    const dim3 grid(static_cast<unsigned>(n), static_cast<unsigned>(ceil_div(pieces, kVectorThreads)));
    with_activation_type(params.qkv.dtype, [&](auto type) {
      using T = decltype(type);
      with_kv_type<T>(params.qkv.dtype, params.k_cache.dtype, [&](auto kv_type) {
        using Kv = decltype(kv_type);
        launch_overlapped(rope_append_vectors<T, Kv>,
                          grid,
                          kVectorThreads,
                          cuda.handle(),
                          rows_as<T>(params.qkv),
                          tokens,
                          shape,
                          static_cast<Kv*>(params.k_cache.data),
                          static_cast<Kv*>(params.v_cache.data));
      });
    });
    return cuda.check(cudaGetLastError(), "rope_append");
  }
  const int threads = threads_for((params.num_heads + params.num_kv_heads) * shape.head_dim / 2, 256);
  with_activation_type(params.qkv.dtype, [&](auto type) {
    using T = decltype(type);
    with_kv_type<T>(params.qkv.dtype, params.k_cache.dtype, [&](auto kv_type) {
      using Kv = decltype(kv_type);
      rope_append<T, Kv>
          <<<static_cast<unsigned>(n), threads, 0, cuda.handle()>>>(rows_as<T>(params.qkv),
                                                                    tokens,
                                                                    shape,
                                                                    static_cast<Kv*>(params.k_cache.data),
                                                                    static_cast<Kv*>(params.v_cache.data));
    });
  });
  cuda.check(cudaGetLastError(), "rope_append");
}

}  // namespace llm_dist::kernels
