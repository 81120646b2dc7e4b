// Element types, and conversions between float and the 16-bit formats.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace llm_dist {

enum class DType : uint8_t { kF32, kF16, kBF16, kI32, kI64, kU8 };

constexpr int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kF16:
    case DType::kBF16: return 2;
    case DType::kI64: return 8;
    case DType::kU8: return 1;
  }
  return 0;
}

std::string_view to_string(DType dtype);  // "f32", "bf16", …

// Storage types of the 16-bit formats: bits only, arithmetic is done in float.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

inline float to_float(float value) { return value; }
inline float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
float to_float(Float16 value);

// Round to nearest even; NaN stays NaN.
inline BFloat16 to_bf16(float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
Float16 to_f16(float value);

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
