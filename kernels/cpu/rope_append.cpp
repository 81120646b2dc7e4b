// Rotary embedding of Q and K in place, and the append of K and V to the paged cache: one pass over the
// merged projection while it is still in cache. The cached K is rounded once, from the rotated float.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope_append.cpp"  // NOLINT
#include "kernels/cpu/simd_targets.h"
// clang-format off: the rest comes after the list of targets
#include <hwy/foreach_target.h>
#include "kernels/cpu/simd-inl.h"
// clang-format on

#include "kernels/cpu/cpu_op_state.h"
#include "kernels/cpu/kv_view.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_views.h"
#include "src/device/cpu/cpu_stream.h"

#ifndef LLM_DIST_KERNELS_CPU_ROPE_APPEND_ONCE
#define LLM_DIST_KERNELS_CPU_ROPE_APPEND_ONCE
namespace llm_dist::kernels {

struct RopeWork {
  Rows qkv;
  const int32_t* positions;
  const int32_t* slots;
  const float* cos_sin;
  int64_t cos_sin_stride;
  int64_t max_position;
  KvView k_cache;
  KvView v_cache;
  int64_t num_heads;
  int64_t num_kv_heads;
};

}  // namespace llm_dist::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace llm_dist::kernels::HWY_NAMESPACE {

// (x[i], x[i + half]) rotated for i in [0, half), to x and, for keys, to `cache` too.
template <typename T, typename Kv>
HWY_INLINE void rotate_head(T* x, const float* cos_sin, int64_t half, Kv* cache) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const FloatVec cosine = load_floats(cos_sin + i);
    const FloatVec sine = load_floats(cos_sin + half + i);
    const FloatVec a = load_floats(x + i);
    const FloatVec b = load_floats(x + half + i);
    const FloatVec first = hn::NegMulAdd(b, sine, hn::Mul(a, cosine));
    const FloatVec second = hn::MulAdd(a, sine, hn::Mul(b, cosine));
    store_floats(first, x + i);
    store_floats(second, x + half + i);
    if (cache != nullptr) {
      store_floats(first, cache + i);
      store_floats(second, cache + half + i);
    }
  }
  if (i == half) return;
  const int64_t rest = half - i;
  const FloatVec cosine = load_floats_partly(cos_sin + i, rest);
  const FloatVec sine = load_floats_partly(cos_sin + half + i, rest);
  const FloatVec a = load_floats_partly(x + i, rest);
  const FloatVec b = load_floats_partly(x + half + i, rest);
  const FloatVec first = hn::NegMulAdd(b, sine, hn::Mul(a, cosine));
  const FloatVec second = hn::MulAdd(a, sine, hn::Mul(b, cosine));
  store_floats_partly(first, x + i, rest);
  store_floats_partly(second, x + half + i, rest);
  if (cache != nullptr) {
    store_floats_partly(first, cache + i, rest);
    store_floats_partly(second, cache + half + i, rest);
  }
}

template <typename T, typename Kv>
HWY_INLINE void convert_head(const T* from, Kv* to, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_floats(load_floats(from + i), to + i);
  if (i < n) store_floats_partly(load_floats_partly(from + i, n - i), to + i, n - i);
}

template <typename T, typename Kv>
void rope_rows(const RopeWork& work, int64_t begin, int64_t end) {
  const int64_t head_dim = work.k_cache.head_dim;
  const int64_t half = head_dim / 2;
  for (int64_t t = begin; t < end; ++t) {
    if (work.slots[t] < 0) continue;
    const float* cos_sin = work.cos_sin + work.positions[t] * work.cos_sin_stride;
    const int64_t block = work.slots[t] / work.k_cache.block_size;
    const int64_t offset = work.slots[t] % work.k_cache.block_size;
    T* x = work.qkv.row<T>(t);
    for (int64_t h = 0; h < work.num_heads; ++h, x += head_dim) {
      rotate_head(x, cos_sin, half, static_cast<Kv*>(nullptr));
    }
    for (int64_t h = 0; h < work.num_kv_heads; ++h, x += head_dim) {
      rotate_head(x, cos_sin, half, work.k_cache.at<Kv>(block, h, offset));
    }
    for (int64_t h = 0; h < work.num_kv_heads; ++h, x += head_dim) {
      convert_head(x, work.v_cache.at<Kv>(block, h, offset), head_dim);
    }
  }
}

template <typename T>
void rope_rows_of(const RopeWork& work, int64_t begin, int64_t end) {
  switch (work.k_cache.dtype) {
    case DType::kF32: return rope_rows<T, float>(work, begin, end);
    case DType::kBF16: return rope_rows<T, BFloat16>(work, begin, end);
    case DType::kF8E4M3: return rope_rows<T, Float8E4M3>(work, begin, end);
    default: return rope_rows<T, Float16>(work, begin, end);
  }
}

void rope_rows_any(const RopeWork& work, int64_t begin, int64_t end) {
  switch (work.qkv.dtype) {
    case DType::kF32: return rope_rows_of<float>(work, begin, end);
    case DType::kBF16: return rope_rows_of<BFloat16>(work, begin, end);
    default: return rope_rows_of<Float16>(work, begin, end);
  }
}

}  // namespace llm_dist::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llm_dist::kernels {
namespace {

HWY_EXPORT(rope_rows_any);

void check_tokens(const RopeWork& work) {
  const int64_t num_slots = work.k_cache.num_blocks * work.k_cache.block_size;
  for (int64_t t = 0; t < work.qkv.count; ++t) {
    if (work.slots[t] < 0) continue;
    CHECK_LT(work.slots[t], num_slots);
    CHECK(work.positions[t] >= 0 && work.positions[t] < work.max_position,
          "position {} beyond the rotary table's {}",
          work.positions[t],
          work.max_position);
  }
}

}  // namespace

void rope_append_cpu(OpState& state, device::Stream& stream, const RopeAppendParams& params) {
  const Rows qkv = activation_rows(params.qkv);
  const KvView k_cache = kv_view(params.k_cache);
  const KvView v_cache = kv_view(params.v_cache);
  CHECK_EQ(k_cache.dtype, v_cache.dtype);
  CHECK_EQ(k_cache.num_kv_heads, params.num_kv_heads);
  CHECK_EQ(qkv.width, (params.num_heads + 2 * params.num_kv_heads) * k_cache.head_dim);
  CHECK_EQ(k_cache.head_dim % 2, 0);
  const Rows table = rows_of(params.cos_sin);
  CHECK_EQ(table.width, k_cache.head_dim);
  const RopeWork work{.qkv = qkv,
                      .positions = i32_vector(params.positions, qkv.count),
                      .slots = i32_vector(params.kv_slots, qkv.count),
                      .cos_sin = params.cos_sin.as<float>(),
                      .cos_sin_stride = params.cos_sin.stride(0),
                      .max_position = table.count,
                      .k_cache = k_cache,
                      .v_cache = v_cache,
                      .num_heads = params.num_heads,
                      .num_kv_heads = params.num_kv_heads};
  const int threads = as_cpu(state).threads();
  device::as_cpu(stream).enqueue([=] {
    check_tokens(work);
    parallel_for(
        threads, work.qkv.count, rows_per_thread(work.qkv.width), [&](int64_t begin, int64_t end, int) {
          HWY_DYNAMIC_DISPATCH(rope_rows_any)(work, begin, end);
        });
  });
}

}  // namespace llm_dist::kernels
#endif
