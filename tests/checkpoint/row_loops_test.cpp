// Each loop on every instruction set of this CPU, beside the conversions of src/base/dtype.h one by one.
#include "src/checkpoint/row_loops.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "src/base/dtype.h"
#include "tests/highway_targets.h"

namespace llm_dist::checkpoint {
namespace {

// The lengths are those of whole vectors of 4 to 16 lanes, and with 1 to 15 values more.
constexpr int64_t kLengths[] = {0, 1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 100};

class RowLoops : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    if ((hwy::SupportedTargets() & GetParam()) == 0) GTEST_SKIP() << "this CPU has no such instructions";
    use_highway_targets(GetParam());
  }
  void TearDown() override { use_highway_targets(0); }
};

// Every sign, exponent and NaN, and between two bf16 what is rounded down, up and, halfway, to the even one.
std::vector<float> floats_of_all_kinds() {
  std::vector<float> values;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (uint32_t low : {0x0000u, 0x7fffu, 0x8000u, 0x8001u})
      values.push_back(std::bit_cast<float>(high << 16 | low));
  }
  return values;
}

// An instruction that multiplies and adds at once, or integers of another width, would show.
TEST_P(RowLoops, MadeUpValuesAreTheSameEverywhere) {
  constexpr uint64_t kRow = 0x9e3779b97f4a7c15u;
  constexpr int64_t kColBegin = (int64_t{1} << 32) - 20;  // columns that no longer fit 32 bits
  for (int64_t k : kLengths) {
    std::vector<float> values(static_cast<size_t>(k) + 1, -1.0f);
    make_up_row(kRow, kColBegin, values.data(), k);
    EXPECT_EQ(values.back(), -1.0f) << "beyond the row";
    for (int64_t i = 0; i < k; ++i) {
      auto bits = (static_cast<uint32_t>(kColBegin + i) ^ static_cast<uint32_t>(kRow)) * 0x7feb352du;
      bits = ((bits ^ bits >> 15) ^ static_cast<uint32_t>(kRow >> 32)) * 0x846ca68bu;
      bits ^= bits >> 16;
      int sum = 0;
      for (int byte = 0; byte < 4; ++byte) sum += static_cast<int>(bits >> (8 * byte) & 0xffu);
      const auto scale = static_cast<float>(0.02 / (256.0 * 0.57735026918962576));
      ASSERT_EQ(values[static_cast<size_t>(i)], scale * static_cast<float>(sum - 510)) << k << ", " << i;
    }
  }
}

TEST_P(RowLoops, Bf16IsRoundedAndWidened) {
  const std::vector<float> values = floats_of_all_kinds();
  const auto k = static_cast<int64_t>(values.size());
  std::vector<std::byte> row(2 * values.size() + 1);
  std::byte* odd = row.data() + 1;  // rows of files stand anywhere
  round_to_bf16_row(values.data(), odd, k);
  std::vector<float> back(values.size());
  widen_bf16_row(odd, back.data(), k);
  for (size_t i = 0; i < values.size(); ++i) {
    const float expected = to_float(to_bf16(values[i]));
    ASSERT_EQ(std::bit_cast<uint32_t>(back[i]), std::bit_cast<uint32_t>(expected)) << values[i];
  }
}

TEST_P(RowLoops, F8IsEncoded) {
  const std::vector<float> values = floats_of_all_kinds();
  std::vector<std::byte> codes(values.size());
  for (float scale : {1.0f, 0.013f, 3e5f}) {
    encode_f8_row(values.data(), scale, codes.data(), static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(std::to_integer<int>(codes[i]), to_f8e4m3(values[i] / scale).bits)
          << values[i] << " by " << scale;
  }
}

TEST_P(RowLoops, LastValuesAreLeftAlone) {
  const std::vector<float> values(100, 2.5f);
  for (int64_t k : kLengths) {
    std::vector<std::byte> bf16(201, std::byte{7});
    round_to_bf16_row(values.data(), bf16.data(), k);
    EXPECT_EQ(bf16[static_cast<size_t>(2 * k)], std::byte{7}) << k;
    std::vector<float> widened(101, -1.0f);
    widen_bf16_row(bf16.data(), widened.data(), k);
    EXPECT_EQ(widened[static_cast<size_t>(k)], -1.0f) << k;
    for (int64_t i = 0; i < k; ++i) EXPECT_EQ(widened[static_cast<size_t>(i)], 2.5f) << k << ", " << i;
    std::vector<std::byte> codes(101, std::byte{7});
    encode_f8_row(values.data(), 1.0f, codes.data(), k);
    EXPECT_EQ(codes[static_cast<size_t>(k)], std::byte{7}) << k;
  }
}

TEST_P(RowLoops, LargestMagnitude) {
  for (int64_t k : kLengths) {
    for (int64_t at = 0; at < k; ++at) {
      std::vector<float> values(static_cast<size_t>(k), 0.5f);
      values[static_cast<size_t>(at)] = -3.0f;
      EXPECT_EQ(largest_magnitude_bits(values.data(), k), std::bit_cast<uint32_t>(3.0f)) << k << ", " << at;
      for (float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::quiet_NaN()}) {
        values[static_cast<size_t>(at)] = bad;
        const auto largest = std::bit_cast<float>(largest_magnitude_bits(values.data(), k));
        EXPECT_FALSE(std::isfinite(largest)) << k << ", " << at;
      }
    }
  }
  EXPECT_EQ(largest_magnitude_bits(nullptr, 0), 0u);
}

std::string target_name(const testing::TestParamInfo<int64_t>& target) {
  return hwy::TargetName(target.param);
}
INSTANTIATE_TEST_SUITE_P(Targets,
                         RowLoops,
                         testing::Values(HWY_SSSE3, HWY_SSE4, HWY_AVX2, HWY_AVX3),
                         target_name);

}  // namespace
}  // namespace llm_dist::checkpoint
