#include "src/base/dtype.h"

#include "src/base/weight.h"

namespace llm_dist {

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kF16: return "f16";
    case DType::kBF16: return "bf16";
    case DType::kI32: return "i32";
    case DType::kI64: return "i64";
    case DType::kU8: return "u8";
    case DType::kF8E4M3: return "f8_e4m3";
  }
  return "?";
}

std::string_view to_string(WeightScheme scheme) {
  switch (scheme) {
    case WeightScheme::kF32: return "f32";
    case WeightScheme::kF16: return "f16";
    case WeightScheme::kBF16: return "bf16";
    case WeightScheme::kQ8_0: return "q8_0";
    case WeightScheme::kQ4_0: return "q4_0";
    case WeightScheme::kQ4_1: return "q4_1";
    case WeightScheme::kF8E4M3: return "f8_e4m3";
  }
  return "?";
}

WeightScheme scheme_of(DType dtype) {
  switch (dtype) {
    case DType::kF32: return WeightScheme::kF32;
    case DType::kF16: return WeightScheme::kF16;
    case DType::kBF16: return WeightScheme::kBF16;
    case DType::kF8E4M3: return WeightScheme::kF8E4M3;
    default: break;
  }
  CHECK(false, "{} is no dense weight", dtype);
}

// IEEE 754 binary16 by shifting the exponent: 5 bits biased 15 against 8 bits biased 127.
float to_float(Float16 value) {
  uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  uint32_t exponent = (value.bits >> 10) & 0x1fu;
  uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal
  return sign != 0 ? -magnitude : magnitude;
}

// Shifted to the float format a code is 2¹²⁰ times too small, subnormal ones too.
float to_float(Float8E4M3 value) {
  uint32_t sign = static_cast<uint32_t>(value.bits & 0x80u) << 24;
  uint32_t magnitude = value.bits & 0x7fu;
  if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  return std::bit_cast<float>(sign | (magnitude << 20)) * 0x1p120f;
}

Float16 to_f16(float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // rounds to infinity
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 aligns the wanted bits at the bottom of the mantissa, rounded to nearest even.
    float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000u))};
  }
  uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23);
  return {static_cast<uint16_t>(sign | (rounded >> 13))};
}

}  // namespace llm_dist
