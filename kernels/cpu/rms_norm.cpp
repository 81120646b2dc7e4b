// RMSNorm, alone and behind the residual addition, and the addition alone. A row is small enough for the
// first-level cache, so it is read twice: once for its sum of squares, once to be scaled.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rms_norm.cpp"  // NOLINT
#include "kernels/cpu/simd_targets.h"
// clang-format off: the rest comes after the list of targets
#include <hwy/foreach_target.h>
#include "kernels/cpu/simd-inl.h"
// clang-format on

#include <cmath>

#include "kernels/cpu/cpu_op_state.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_views.h"
#include "src/device/cpu/cpu_stream.h"

HWY_BEFORE_NAMESPACE();
namespace llm_dist::kernels::HWY_NAMESPACE {

template <typename T>
float sum_squares(const T* x, int64_t n) {
  FloatVec sum0 = hn::Zero(FloatTag());
  FloatVec sum1 = sum0;
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const FloatVec a = load_floats(x + i);
    const FloatVec b = load_floats(x + i + kLanes);
    sum0 = hn::MulAdd(a, a, sum0);
    sum1 = hn::MulAdd(b, b, sum1);
  }
  for (; i < n; i += kLanes) {
    const FloatVec a = i + kLanes <= n ? load_floats(x + i) : load_floats_partly(x + i, n - i);
    sum0 = hn::MulAdd(a, a, sum0);
  }
  return hn::GetLane(hn::SumOfLanes(FloatTag(), hn::Add(sum0, sum1)));
}

template <typename T>
void scale_row(const T* x, const T* weight, float scale, T* out, int64_t n) {
  const FloatVec factor = hn::Set(FloatTag(), scale);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store_floats(hn::Mul(hn::Mul(load_floats(x + i), factor), load_floats(weight + i)), out + i);
  }
  if (i < n) {
    const FloatVec scaled = hn::Mul(load_floats_partly(x + i, n - i), factor);
    store_floats_partly(hn::Mul(scaled, load_floats_partly(weight + i, n - i)), out + i, n - i);
  }
}

template <typename T>
void add_row(T* a, const T* b, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store_floats(hn::Add(load_floats(a + i), load_floats(b + i)), a + i);
  }
  if (i < n) {
    const FloatVec sum = hn::Add(load_floats_partly(a + i, n - i), load_floats_partly(b + i, n - i));
    store_floats_partly(sum, a + i, n - i);
  }
}

template <typename T>
void norm_rows(
    const Rows& x, const void* weight, float epsilon, const Rows& out, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const float mean = sum_squares(x.row<T>(t), x.width) / static_cast<float>(x.width);
    const float scale = 1.0f / std::sqrt(mean + epsilon);
    scale_row(x.row<T>(t), static_cast<const T*>(weight), scale, out.row<T>(t), x.width);
  }
}

template <typename T>
void add_rows(const Rows& a, const Rows& b, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) add_row(a.row<T>(t), b.row<T>(t), a.width);
}

void norm_rows_any(
    const Rows& x, const void* weight, float epsilon, const Rows& out, int64_t begin, int64_t end) {
  switch (x.dtype) {
    case DType::kF32: return norm_rows<float>(x, weight, epsilon, out, begin, end);
    case DType::kBF16: return norm_rows<BFloat16>(x, weight, epsilon, out, begin, end);
    default: return norm_rows<Float16>(x, weight, epsilon, out, begin, end);
  }
}

void add_rows_any(const Rows& a, const Rows& b, int64_t begin, int64_t end) {
  switch (a.dtype) {
    case DType::kF32: return add_rows<float>(a, b, begin, end);
    case DType::kBF16: return add_rows<BFloat16>(a, b, begin, end);
    default: return add_rows<Float16>(a, b, begin, end);
  }
}

}  // namespace llm_dist::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llm_dist::kernels {
namespace {

HWY_EXPORT(norm_rows_any);
HWY_EXPORT(add_rows_any);

void check_same(const Rows& a, const Rows& b) {
  CHECK_EQ(a.dtype, b.dtype);
  CHECK_EQ(a.count, b.count);
  CHECK_EQ(a.width, b.width);
}

void check_norm_weight(const Rows& x, const Tensor& weight) {
  CHECK_EQ(weight.dtype, x.dtype);
  CHECK(weight.rank == 1 && weight.dim(0) == x.width && weight.is_contiguous(),
        "norm weight {} for rows of {}",
        weight.to_string(),
        x.width);
}

}  // namespace

void rms_norm_cpu(OpState& state, device::Stream& stream, const RmsNormParams& params) {
  const Rows x = activation_rows(params.x);
  const Rows out = activation_rows(params.out);
  check_same(x, out);
  check_norm_weight(x, params.weight);
  const int threads = as_cpu(state).threads();
  device::as_cpu(stream).enqueue([=, weight = params.weight.data, epsilon = params.epsilon] {
    parallel_for(threads, x.count, rows_per_thread(x.width), [&](int64_t begin, int64_t end, int) {
      HWY_DYNAMIC_DISPATCH(norm_rows_any)(x, weight, epsilon, out, begin, end);
    });
  });
}

void add_rms_norm_cpu(OpState& state, device::Stream& stream, const AddRmsNormParams& params) {
  const Rows x = activation_rows(params.x);
  const Rows residual = activation_rows(params.residual);
  const Rows out = activation_rows(params.out);
  check_same(x, out);
  check_same(x, residual);
  check_norm_weight(x, params.weight);
  const int threads = as_cpu(state).threads();
  device::as_cpu(stream).enqueue([=, weight = params.weight.data, epsilon = params.epsilon] {
    parallel_for(threads, x.count, rows_per_thread(x.width), [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        HWY_DYNAMIC_DISPATCH(add_rows_any)(residual, x, t, t + 1);
        HWY_DYNAMIC_DISPATCH(norm_rows_any)(residual, weight, epsilon, out, t, t + 1);
      }
    });
  });
}

void add_cpu(OpState& state, device::Stream& stream, const AddParams& params) {
  const Rows a = activation_rows(params.a);
  const Rows b = activation_rows(params.b);
  check_same(a, b);
  const int threads = as_cpu(state).threads();
  device::as_cpu(stream).enqueue([=] {
    parallel_for(threads, a.count, rows_per_thread(a.width), [&](int64_t begin, int64_t end, int) {
      HWY_DYNAMIC_DISPATCH(add_rows_any)(a, b, begin, end);
    });
  });
}

}  // namespace llm_dist::kernels
#endif
