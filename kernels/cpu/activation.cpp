// SiLU(gate) · up. Bound by memory; the exponential is Highway's, good to about one unit in the last place.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation.cpp"  // NOLINT
#include "kernels/cpu/simd_targets.h"
// clang-format off: the rest comes after the list of targets
#include <hwy/foreach_target.h>
#include "kernels/cpu/simd-inl.h"
#include <hwy/contrib/math/math-inl.h>
// clang-format on

#include "kernels/cpu/cpu_op_state.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_views.h"
#include "src/device/cpu/cpu_stream.h"

HWY_BEFORE_NAMESPACE();
namespace llm_dist::kernels::HWY_NAMESPACE {

HWY_INLINE FloatVec silu(FloatVec x) {
  const FloatTag d;
  // Below −88 the result is under 1e−36 in size; the bound keeps the exponential finite.
  const FloatVec exponential = hn::Exp(d, hn::Min(hn::Neg(x), hn::Set(d, 88.0f)));
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), exponential));
}

template <typename T>
void silu_and_mul_rows(const Rows& gate_up, const Rows& out, int64_t begin, int64_t end) {
  const int64_t n = out.width;
  for (int64_t t = begin; t < end; ++t) {
    const T* gate = gate_up.row<T>(t);
    const T* up = gate + n;
    T* to = out.row<T>(t);
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      store_floats(hn::Mul(silu(load_floats(gate + i)), load_floats(up + i)), to + i);
    }
    if (i < n) {
      const FloatVec activated = silu(load_floats_partly(gate + i, n - i));
      store_floats_partly(hn::Mul(activated, load_floats_partly(up + i, n - i)), to + i, n - i);
    }
  }
}

void silu_and_mul_any(const Rows& gate_up, const Rows& out, int64_t begin, int64_t end) {
  switch (out.dtype) {
    case DType::kF32: return silu_and_mul_rows<float>(gate_up, out, begin, end);
    case DType::kBF16: return silu_and_mul_rows<BFloat16>(gate_up, out, begin, end);
    default: return silu_and_mul_rows<Float16>(gate_up, out, begin, end);
  }
}

}  // namespace llm_dist::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llm_dist::kernels {
namespace {
HWY_EXPORT(silu_and_mul_any);
}

void silu_and_mul_cpu(OpState& state, device::Stream& stream, const SiluAndMulParams& params) {
  const Rows gate_up = activation_rows(params.gate_up);
  const Rows out = activation_rows(params.out);
  CHECK_EQ(gate_up.dtype, out.dtype);
  CHECK_EQ(gate_up.count, out.count);
  CHECK_EQ(gate_up.width, 2 * out.width);
  const int threads = as_cpu(state).threads();
  device::as_cpu(stream).enqueue([=] {
    parallel_for(threads, out.count, rows_per_thread(4 * out.width), [&](int64_t begin, int64_t end, int) {
      HWY_DYNAMIC_DISPATCH(silu_and_mul_any)(gate_up, out, begin, end);
    });
  });
}

}  // namespace llm_dist::kernels
#endif
