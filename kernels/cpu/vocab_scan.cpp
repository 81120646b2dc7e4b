#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/vocab_scan.cpp"  // NOLINT
#include "kernels/cpu/simd_targets.h"
// clang-format off: the rest comes after the list of targets
#include <hwy/foreach_target.h>
#include "kernels/cpu/simd-inl.h"
#include <hwy/contrib/math/math-inl.h>
// clang-format on

#include <algorithm>
#include <limits>

#include "kernels/cpu/vocab_scan.h"

HWY_BEFORE_NAMESPACE();
namespace llm_dist::kernels::HWY_NAMESPACE {

HWY_INLINE FloatVec clean(FloatVec x) {
  const FloatTag d;
  const FloatVec bounded = hn::Min(x, hn::Set(d, std::numeric_limits<float>::max()));
  return hn::IfThenElse(hn::IsNaN(x), hn::Set(d, -std::numeric_limits<float>::infinity()), bounded);
}

void copy_clean_row(const float* from, float* to, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_floats(clean(load_floats(from + i)), to + i);
  if (i < n) store_floats_partly(clean(load_floats_partly(from + i, n - i)), to + i, n - i);
}

float scan_maxima(const float* x, int64_t chunks, float* chunk_max) {
  const FloatTag d;
  float best = -std::numeric_limits<float>::infinity();
  for (int64_t c = 0; c < chunks; ++c, x += kVocabChunk) {
    FloatVec max0 = load_floats(x);
    FloatVec max1 = load_floats(x + kLanes);
    for (int64_t i = 2 * kLanes; i < kVocabChunk; i += 2 * kLanes) {
      max0 = hn::Max(max0, load_floats(x + i));
      max1 = hn::Max(max1, load_floats(x + i + kLanes));
    }
    chunk_max[c] = hn::GetLane(hn::MaxOfLanes(d, hn::Max(max0, max1)));
    best = chunk_max[c] > best ? chunk_max[c] : best;
  }
  return best;
}

template <bool kReplace>
HWY_INLINE float chunk_weights(float* x, const SoftmaxScan& scan) {
  const FloatTag d;
  const FloatVec max = hn::Set(d, scan.max);
  const FloatVec factor = hn::Set(d, scan.inverse_temperature);
  const FloatVec floor = hn::Set(d, scan.min_weight);
  FloatVec sum = hn::Zero(d);
  for (int64_t i = 0; i < kVocabChunk; i += kLanes) {
    FloatVec weight = hn::Exp(d, hn::Mul(hn::Sub(load_floats(x + i), max), factor));
    weight = hn::IfThenElseZero(hn::Ge(weight, floor), weight);
    if constexpr (kReplace) store_floats(weight, x + i);
    sum = hn::Add(sum, weight);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

double sum_row_weights(const float* x, int64_t chunks, const SoftmaxScan& scan) {
  double total = 0;
  for (int64_t c = 0; c < chunks; ++c) {
    total += static_cast<double>(chunk_weights<false>(const_cast<float*>(x) + c * kVocabChunk, scan));
  }
  return total;
}

double replace_row_by_weights(float* x, int64_t chunks, const SoftmaxScan& scan, double* chunk_sum) {
  double total = 0;
  for (int64_t c = 0; c < chunks; ++c) {
    chunk_sum[c] = static_cast<double>(chunk_weights<true>(x + c * kVocabChunk, scan));
    total += chunk_sum[c];
  }
  return total;
}

}  // namespace llm_dist::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llm_dist::kernels {
namespace {
HWY_EXPORT(copy_clean_row);
HWY_EXPORT(scan_maxima);
HWY_EXPORT(sum_row_weights);
HWY_EXPORT(replace_row_by_weights);
}  // namespace

void copy_clean(const float* from, float* to, int64_t n) {
  HWY_DYNAMIC_DISPATCH(copy_clean_row)(from, to, n);
}

float scan_chunk_maxima(const float* x, int64_t chunks, float* chunk_max) {
  return HWY_DYNAMIC_DISPATCH(scan_maxima)(x, chunks, chunk_max);
}

double sum_weights(const float* x, int64_t chunks, const SoftmaxScan& scan) {
  return HWY_DYNAMIC_DISPATCH(sum_row_weights)(x, chunks, scan);
}

double replace_by_weights(float* x, int64_t chunks, const SoftmaxScan& scan, double* chunk_sum) {
  return HWY_DYNAMIC_DISPATCH(replace_row_by_weights)(x, chunks, scan, chunk_sum);
}

}  // namespace llm_dist::kernels
#endif
