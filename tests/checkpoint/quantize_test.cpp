#include "src/checkpoint/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

namespace llm_dist::checkpoint {
namespace {

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

// f16: 0x3800 is 0.5, 0xbc00 is −1.
TEST(Quantize, Q4_1BlockByHand) {
  auto block = bytes_of({0x00, 0x38, 0x00, 0xbc});
  for (int i = 0; i < 16; ++i) block.push_back(static_cast<std::byte>(i | ((15 - i) << 4)));
  std::vector<float> out(32);
  dequantize_row(WeightScheme::kQ4_1, block.data(), out.data(), 32);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(out[static_cast<size_t>(i)], 0.5f * static_cast<float>(i) - 1.0f);
    EXPECT_EQ(out[static_cast<size_t>(i + 16)], 0.5f * static_cast<float>(15 - i) - 1.0f);
  }
}

TEST(Quantize, Q4_0BlockByHand) {
  auto block = bytes_of({0x00, 0x38});
  for (int i = 0; i < 16; ++i) block.push_back(static_cast<std::byte>(i));
  std::vector<float> out(32);
  dequantize_row(WeightScheme::kQ4_0, block.data(), out.data(), 32);
  EXPECT_EQ(out[0], -4.0f);
  EXPECT_EQ(out[15], 3.5f);
  EXPECT_EQ(out[31], -4.0f);
}

TEST(Quantize, Q8_0BlockByHand) {
  auto block = bytes_of({0x00, 0xbc});
  for (int i = 0; i < 32; ++i) block.push_back(static_cast<std::byte>(static_cast<int8_t>(i * 8 - 128)));
  std::vector<float> out(32);
  dequantize_row(WeightScheme::kQ8_0, block.data(), out.data(), 32);
  EXPECT_EQ(out[0], 128.0f);
  EXPECT_EQ(out[31], -120.0f);
}

// A round trip errs by half a step of its block at most.
TEST(Quantize, RoundTripIsWithinHalfAStep) {
  constexpr int64_t kValues = 96;
  std::vector<float> values(kValues);
  for (int64_t i = 0; i < kValues; ++i) {
    const int64_t block = i / 32;
    values[static_cast<size_t>(i)] = std::sin(static_cast<float>(i) * 1.7f) * static_cast<float>(1 + block);
  }
  struct Case {
    WeightScheme scheme;
    double relative;   // half of a float's last place; of block schemes their f16 scale's
    double steps = 0;  // of a range [−a, a] in the largest block, a = 3; 0: each value has its own
  };
  for (Case c : {Case{WeightScheme::kF32, 0},
                 Case{WeightScheme::kF16, 0x1p-11},
                 Case{WeightScheme::kBF16, 0x1p-8},
                 Case{WeightScheme::kQ8_0, 0x1p-11, 254},
                 Case{WeightScheme::kQ4_0, 0x1p-11, 16},
                 Case{WeightScheme::kQ4_1, 0x1p-11, 15}}) {
    std::vector<std::byte> row(static_cast<size_t>(row_bytes(c.scheme, kValues)));
    std::vector<float> back(kValues);
    quantize_row(c.scheme, values.data(), row.data(), kValues);
    dequantize_row(c.scheme, row.data(), back.data(), kValues);
    // q4_0 has no code for +max: the value opposite the extreme errs by a whole step.
    const double half = c.scheme == WeightScheme::kQ4_0 ? 1.0 : 0.5;
    for (size_t i = 0; i < values.size(); ++i) {
      const double tolerance =
          c.steps > 0 ? 6.0 / c.steps * half + 3 * c.relative : std::abs(values[i]) * c.relative;
      EXPECT_NEAR(values[i], back[i], tolerance) << to_string(c.scheme) << " " << i;
    }
  }
}

TEST(Quantize, ConstantBlocksSurvive) {
  std::vector<float> ones(32, 1.0f);
  std::vector<float> back(32);
  for (auto scheme : {WeightScheme::kQ8_0, WeightScheme::kQ4_0, WeightScheme::kQ4_1}) {
    std::vector<std::byte> row(static_cast<size_t>(row_bytes(scheme, 32)));
    quantize_row(scheme, ones.data(), row.data(), 32);
    dequantize_row(scheme, row.data(), back.data(), 32);
    for (float value : back) EXPECT_NEAR(value, 1.0f, 1e-3f) << to_string(scheme);
  }
}

TEST(Quantize, F16IsRefusedWhereAValueWouldBecomeInfinity) {
  for (const float fits : {65504.0f, -65504.0f, 65519.0f}) {  // the last rounds to 65504
    const std::vector<float> row = {1.0f, fits, 2.0f};
    EXPECT_TRUE(check_fits_f16("w", 3, row.data(), 3).ok()) << fits;
  }
  for (const float too_large : {65520.0f, -1e30f}) {
    const std::vector<float> row = {1.0f, too_large, 2.0f};
    const Status status = check_fits_f16("w", 3, row.data(), 3);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << too_large;
    EXPECT_NE(status.message().find("tensor w row 3 "), std::string::npos) << status.message();
  }
  const std::vector<float> infinite = {1.0f, HUGE_VALF, 1e30f};
  EXPECT_TRUE(check_fits_f16("w", 3, infinite.data(), 3).ok()) << "so it stands in the checkpoint";
}

// The row's largest magnitude becomes 448, the others the nearest of 448's fractions.
TEST(Quantize, F8RowByHand) {
  const std::vector<float> row = {-112.0f, 0.0f, 56.0f, 0.25f, 0x1p-11f, 1.0625f * 0.25f};
  const float scale = f8_row_scale(row.data(), 6);
  EXPECT_EQ(scale, 0.25f);
  std::vector<std::byte> codes(6);
  quantize_f8(row.data(), scale, codes.data(), 6);
  EXPECT_EQ(codes, bytes_of({0xfe, 0x00, 0x76, 0x38, 0x01, 0x38}));  // −448, 0, 224, 1, 2⁻⁹, 1 (to even)
  std::vector<float> back(6);
  dequantize_row(WeightScheme::kF8E4M3, codes.data(), back.data(), 6);
  EXPECT_EQ(back, (std::vector<float>{-448, 0, 224, 1, 0x1p-9f, 1}));
}

TEST(Quantize, F8ErrsByHalfAStepOfItsBinade) {
  constexpr int64_t kValues = 500;
  std::vector<float> values(kValues);
  for (int64_t i = 0; i < kValues; ++i)
    values[static_cast<size_t>(i)] =
        std::sin(static_cast<float>(i) * 1.7f) * std::exp(static_cast<float>(i % 9));
  const float scale = f8_row_scale(values.data(), kValues);
  std::vector<std::byte> codes(kValues);
  std::vector<float> back(kValues);
  quantize_f8(values.data(), scale, codes.data(), kValues);
  dequantize_row(WeightScheme::kF8E4M3, codes.data(), back.data(), kValues);
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_NEAR(values[i], back[i] * scale, std::max(std::fabs(values[i]) / 16, scale * 0x1p-10f) * 1.0001f);
}

TEST(Quantize, F8ScaleOfRowsThatHaveNone) {
  const std::vector<float> zeros(5, 0.0f);
  EXPECT_EQ(f8_row_scale(zeros.data(), 5), 1.0f);
  std::vector<std::byte> codes(5, std::byte{1});
  quantize_f8(zeros.data(), 1.0f, codes.data(), 5);
  EXPECT_EQ(codes, bytes_of({0, 0, 0, 0, 0}));
  const std::vector<float> tiny(3, 1e-44f);  // its 448th part is no float
  EXPECT_GT(f8_row_scale(tiny.data(), 3), 0.0f);
  for (float bad : {std::nanf(""), -std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
    const std::vector<float> row = {1.0f, bad, 2.0f};
    EXPECT_TRUE(std::isnan(f8_row_scale(row.data(), 3))) << bad;
  }
}

}  // namespace
}  // namespace llm_dist::checkpoint
