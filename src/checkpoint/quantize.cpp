#include "src/checkpoint/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/base/check.h"
#include "src/checkpoint/row_loops.h"

namespace llm_dist::checkpoint {
namespace {

constexpr int kBlock = 32;

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

// Rounds a scale through f16 as it will be stored, so that the quants are chosen for the scale that is read
// back.
float store_f16(std::byte* to, float value) {
  Float16 half = to_f16(value);
  store(to, half);
  return to_float(half);
}

int round_to(float value, float scale, int low, int high) {
  if (scale == 0.0f) return std::clamp(0, low, high);
  return std::clamp(static_cast<int>(std::lround(value / scale)), low, high);
}

void dequantize_block(WeightScheme scheme, const std::byte* block, float* out) {
  float d = to_float(load<Float16>(block));
  if (scheme == WeightScheme::kQ8_0) {
    for (int i = 0; i < kBlock; ++i) out[i] = d * static_cast<float>(load<int8_t>(block + 2 + i));
    return;
  }
  bool has_minimum = scheme == WeightScheme::kQ4_1;
  float m = has_minimum ? to_float(load<Float16>(block + 2)) : -8.0f * d;
  const std::byte* nibbles = block + (has_minimum ? 4 : 2);
  for (int i = 0; i < kBlock / 2; ++i) {
    auto pair = std::to_integer<int>(nibbles[i]);
    out[i] = d * static_cast<float>(pair & 15) + m;
    out[i + kBlock / 2] = d * static_cast<float>(pair >> 4) + m;
  }
}

void quantize_q8_0(const float* x, std::byte* block) {
  float largest = 0.0f;
  for (int i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(x[i]));
  float d = store_f16(block, largest / 127.0f);
  for (int i = 0; i < kBlock; ++i) store(block + 2 + i, static_cast<int8_t>(round_to(x[i], d, -127, 127)));
}

void quantize_q4_0(const float* x, std::byte* block) {
  float extreme = 0.0f;
  for (int i = 0; i < kBlock; ++i)
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  float d = store_f16(block, extreme / -8.0f);
  for (int i = 0; i < kBlock / 2; ++i) {
    int low = round_to(x[i], d, -8, 7) + 8;
    int high = round_to(x[i + kBlock / 2], d, -8, 7) + 8;
    block[2 + i] = static_cast<std::byte>(low | (high << 4));
  }
}

void quantize_q4_1(const float* x, std::byte* block) {
  auto [low_value, high_value] = std::minmax_element(x, x + kBlock);
  float d = store_f16(block, (*high_value - *low_value) / 15.0f);
  float m = store_f16(block + 2, *low_value);
  for (int i = 0; i < kBlock / 2; ++i) {
    int low = round_to(x[i] - m, d, 0, 15);
    int high = round_to(x[i + kBlock / 2] - m, d, 0, 15);
    block[4 + i] = static_cast<std::byte>(low | (high << 4));
  }
}

template <typename T>
void dense_to_float(const std::byte* row, float* out, int64_t k) {
  for (int64_t i = 0; i < k; ++i) out[i] = to_float(load<T>(row + i * static_cast<int64_t>(sizeof(T))));
}

template <typename T>
void dense_from_float(const float* values, std::byte* row, int64_t k) {
  for (int64_t i = 0; i < k; ++i) store(row + i * static_cast<int64_t>(sizeof(T)), from_float<T>(values[i]));
}

void quantize_block(WeightScheme scheme, const float* values, std::byte* block) {
  if (scheme == WeightScheme::kQ8_0) quantize_q8_0(values, block);
  if (scheme == WeightScheme::kQ4_0) quantize_q4_0(values, block);
  if (scheme == WeightScheme::kQ4_1) quantize_q4_1(values, block);
}

}  // namespace

void dequantize_row(WeightScheme scheme, const std::byte* row, float* out, int64_t k) {
  SchemeTraits traits = scheme_traits(scheme);
  CHECK(k % traits.block_values == 0, "{} values of {}", k, scheme);
  if (scheme == WeightScheme::kF32) return dense_to_float<float>(row, out, k);
  if (scheme == WeightScheme::kF16) return dense_to_float<Float16>(row, out, k);
  if (scheme == WeightScheme::kBF16) return widen_bf16_row(row, out, k);
  if (scheme == WeightScheme::kF8E4M3) return dense_to_float<Float8E4M3>(row, out, k);
  for (int64_t block = 0; block < k / traits.block_values; ++block)
    dequantize_block(scheme, row + block * traits.block_bytes, out + block * traits.block_values);
}

void quantize_row(WeightScheme scheme, const float* values, std::byte* row, int64_t k) {
  SchemeTraits traits = scheme_traits(scheme);
  CHECK(k % traits.block_values == 0, "{} values of {}", k, scheme);
  if (scheme == WeightScheme::kF32) return dense_from_float<float>(values, row, k);
  if (scheme == WeightScheme::kF16) return dense_from_float<Float16>(values, row, k);
  if (scheme == WeightScheme::kBF16) return round_to_bf16_row(values, row, k);
  if (scheme == WeightScheme::kF8E4M3) return encode_f8_row(values, 1.0f, row, k);
  for (int64_t block = 0; block < k / traits.block_values; ++block)
    quantize_block(scheme, values + block * traits.block_values, row + block * traits.block_bytes);
}

Status check_fits_f16(std::string_view tensor, int64_t row, const float* values, int64_t k) {
  constexpr auto kRoundsToInfinity = std::bit_cast<uint32_t>(65520.0f);
  constexpr auto kInfinity = std::bit_cast<uint32_t>(std::numeric_limits<float>::infinity());
  const uint32_t largest = largest_magnitude_bits(values, k);
  if (largest < kRoundsToInfinity || largest >= kInfinity) return ok_status();
  return data_loss(
      format("tensor {} row {} holds a value of {}, and float16 ends at 65504: take --dtype bfloat16",
             tensor,
             row,
             std::bit_cast<float>(largest)));
}

float f8_row_scale(const float* values, int64_t k) {
  const uint32_t largest = largest_magnitude_bits(values, k);
  if (largest == 0) return 1.0f;
  const auto magnitude = std::bit_cast<float>(largest);
  if (!std::isfinite(magnitude)) return std::numeric_limits<float>::quiet_NaN();
  return std::max(magnitude / kLargestF8E4M3, std::numeric_limits<float>::min());
}

void quantize_f8(const float* values, float scale, std::byte* codes, int64_t k) {
  encode_f8_row(values, scale, codes, k);
}

}  // namespace llm_dist::checkpoint
