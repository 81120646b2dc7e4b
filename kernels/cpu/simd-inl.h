// What the vectorised ops share, compiled once for each instruction set (Highway's foreach_target includes
// this file again for each): vectors of float from and to f32, bf16 and f16.

#if defined(LLM_DIST_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LLM_DIST_KERNELS_CPU_SIMD_INL_H_
#undef LLM_DIST_KERNELS_CPU_SIMD_INL_H_
#else
#define LLM_DIST_KERNELS_CPU_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/simd_targets.h"
#include "src/base/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace llm_dist::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
inline constexpr int64_t kLanes = static_cast<int64_t>(HWY_LANES(float));

HWY_INLINE FloatVec load_floats(const float* from) { return hn::LoadU(FloatTag(), from); }
HWY_INLINE FloatVec load_floats(const BFloat16* from) {
  const hn::Rebind<uint16_t, FloatTag> half;
  const hn::Rebind<uint32_t, FloatTag> full;
  const auto bits = hn::PromoteTo(full, hn::LoadU(half, reinterpret_cast<const uint16_t*>(from)));
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(bits));
}
HWY_INLINE FloatVec load_floats(const Float16* from) {
  const hn::Rebind<hwy::float16_t, FloatTag> half;
  return hn::PromoteTo(FloatTag(), hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(from)));
}
// Exactly, but for NaN, which becomes 480: as a float with those bits a code is 2¹²⁰ times too small.
HWY_INLINE FloatVec load_floats(const Float8E4M3* from) {
  const hn::Rebind<uint8_t, FloatTag> byte;
  const hn::Rebind<uint32_t, FloatTag> full;
  const auto code = hn::PromoteTo(full, hn::LoadU(byte, reinterpret_cast<const uint8_t*>(from)));
  const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(full, 0x80)));
  const auto bits = hn::Or(sign, hn::ShiftLeft<20>(hn::And(code, hn::Set(full, 0x7f))));
  return hn::Mul(hn::BitCast(FloatTag(), bits), hn::Set(FloatTag(), 0x1p120f));
}

HWY_INLINE void store_floats(FloatVec value, float* to) { hn::StoreU(value, FloatTag(), to); }
// Round to nearest even; NaN stays NaN.
HWY_INLINE void store_floats(FloatVec value, BFloat16* to) {
  const hn::Rebind<uint16_t, FloatTag> half;
  const hn::Rebind<uint32_t, FloatTag> full;
  const auto bits = hn::BitCast(full, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(full, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(full, 0x7fff))));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(full, 0x40));
  const auto is_nan = hn::RebindMask(full, hn::IsNaN(value));
  hn::StoreU(
      hn::TruncateTo(half, hn::IfThenElse(is_nan, quiet, rounded)), half, reinterpret_cast<uint16_t*>(to));
}
HWY_INLINE void store_floats(FloatVec value, Float16* to) {
  const hn::Rebind<hwy::float16_t, FloatTag> half;
  hn::StoreU(hn::DemoteTo(half, value), half, reinterpret_cast<hwy::float16_t*>(to));
}
// As to_f8e4m3() does.
HWY_INLINE void store_floats(FloatVec value, Float8E4M3* to) {
  const hn::Rebind<uint8_t, FloatTag> byte;
  const hn::Rebind<uint32_t, FloatTag> full;
  const auto bits = hn::BitCast(full, value);
  const auto sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(full, 0x80));
  const FloatVec bounded = hn::Min(hn::Abs(value), hn::Set(FloatTag(), kLargestF8E4M3));
  const auto magnitude = hn::BitCast(full, bounded);
  const auto odd = hn::And(hn::ShiftRight<20>(magnitude), hn::Set(full, 1));
  const auto rounded = hn::ShiftRight<20>(hn::Add(magnitude, hn::Add(odd, hn::Set(full, 0x7ffff))));
  const auto normal = hn::Sub(rounded, hn::Set(full, 120u << 3));
  // The last bit of 2¹⁴ is the step of subnormal numbers, 2⁻⁹.
  const FloatVec align = hn::Set(FloatTag(), 0x1p14f);
  const auto subnormal = hn::Sub(hn::BitCast(full, hn::Add(bounded, align)), hn::BitCast(full, align));
  const auto is_small = hn::RebindMask(full, hn::Lt(bounded, hn::Set(FloatTag(), 0x1p-6f)));
  const auto code = hn::IfThenElse(is_small, subnormal, normal);
  const auto is_nan = hn::RebindMask(full, hn::IsNaN(value));
  const auto known = hn::IfThenElse(is_nan, hn::Set(full, 0x7f), code);
  hn::StoreU(hn::TruncateTo(byte, hn::Or(sign, known)), byte, reinterpret_cast<uint8_t*>(to));
}

// The first `count` < kLanes elements; the other lanes are 0, or are not stored.
template <typename T>
HWY_INLINE FloatVec load_floats_partly(const T* from, int64_t count) {
  alignas(64) T padded[kLanes] = {};
  std::memcpy(padded, from, static_cast<size_t>(count) * sizeof(T));
  return load_floats(padded);
}
template <typename T>
HWY_INLINE void store_floats_partly(FloatVec value, T* to, int64_t count) {
  alignas(64) T padded[kLanes];
  store_floats(value, padded);
  std::memcpy(to, padded, static_cast<size_t>(count) * sizeof(T));
}

}  // namespace llm_dist::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
