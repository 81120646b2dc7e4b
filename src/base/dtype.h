// Element types, and conversions between float and the 16-bit and 8-bit formats.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace llm_dist {

enum class DType : uint8_t { kF32, kF16, kBF16, kI32, kI64, kU8, kF8E4M3 };

constexpr int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kF16:
    case DType::kBF16: return 2;
    case DType::kI64: return 8;
    case DType::kU8:
    case DType::kF8E4M3: return 1;
  }
  return 0;
}

std::string_view to_string(DType dtype);  // "f32", "bf16", …

// Storage types of the short formats: bits only, arithmetic is done in float.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};
// OCP FP8 E4M3: 4 bits of exponent biased 7, 3 of mantissa, no infinities; 0x7f and 0xff are NaN.
struct Float8E4M3 {
  uint8_t bits;
};
inline constexpr float kLargestF8E4M3 = 448.0f;

inline float to_float(float value) { return value; }
inline float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
float to_float(Float16 value);
float to_float(Float8E4M3 value);

// Round to nearest even; NaN stays NaN.
inline BFloat16 to_bf16(float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
Float16 to_f16(float value);

// Round to nearest even; what is beyond ±448 becomes ±448; NaN stays NaN.
inline Float8E4M3 to_f8e4m3(float value) {
  constexpr uint32_t kLargest = std::bit_cast<uint32_t>(kLargestF8E4M3);
  constexpr uint32_t kLeastNormal = std::bit_cast<uint32_t>(0x1p-6f);
  constexpr float kAlign = 0x1p14f;  // the last bit of this float is the step of subnormal numbers, 2⁻⁹
  auto bits = std::bit_cast<uint32_t>(value);
  uint32_t sign = (bits >> 24) & 0x80u;
  uint32_t magnitude = std::min(bits & 0x7fffffffu, kLargest);
  uint32_t normal = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
  uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + kAlign) - std::bit_cast<uint32_t>(kAlign);
  uint32_t code = magnitude < kLeastNormal ? subnormal : normal;
  if ((bits & 0x7fffffffu) > 0x7f800000u) code = 0x7fu;
  return {static_cast<uint8_t>(sign | code)};
}

template <typename T>
T from_float(float value);
template <>
inline float from_float<float>(float value) {
  return value;
}
template <>
inline BFloat16 from_float<BFloat16>(float value) {
  return to_bf16(value);
}
template <>
inline Float16 from_float<Float16>(float value) {
  return to_f16(value);
}
template <>
inline Float8E4M3 from_float<Float8E4M3>(float value) {
  return to_f8e4m3(value);
}

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType kValue = DType::kF32;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType kValue = DType::kBF16;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType kValue = DType::kF16;
};
template <>
struct DTypeOf<Float8E4M3> {
  static constexpr DType kValue = DType::kF8E4M3;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType kValue = DType::kI32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType kValue = DType::kI64;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType kValue = DType::kU8;
};

}  // namespace llm_dist
