// The arithmetic behind `bench comm`, `bench kernels` and `bench latency`.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "launch/byte_size.h"
#include "launch/collective_cases.h"
#include "launch/decode_window.h"
#include "launch/op_cost.h"
#include "launch/random_lengths.h"
#include "launch/step_floor.h"
#include "launch/stream_timer.h"

namespace llm_dist::launch {
namespace {

TEST(BusFactor, IsThatOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::kAllReduce, 2), 1.0);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::kAllReduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::kAllReduce, 8), 1.75);
  for (CollectiveKind kind :
       {CollectiveKind::kReduceScatter, CollectiveKind::kAllGather, CollectiveKind::kAllToAll}) {
    EXPECT_DOUBLE_EQ(bus_factor(kind, 2), 0.5) << to_string(kind);
    EXPECT_DOUBLE_EQ(bus_factor(kind, 8), 0.875) << to_string(kind);
  }
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::kBroadcast, 4), 1.0);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::kSendRecv, 2), 1.0);
}

// A byte and an operation take a second.
Ceilings ceilings_of(std::vector<StageWork> stages) {
  return {.read_bytes_per_second = 1,
          .gemm_flops_per_second = 1,
          .head_flops_per_second = 1,
          .stages = std::move(stages)};
}

TEST(DecodeFloor, ReadsWeightsOrMultipliesThenReadsTheCache) {
  Ceilings ceilings = ceilings_of(
      {{.weight_bytes = 100, .kv_bytes_per_token = 2, .layer_flops = 30, .head_flops = 10, .layers = 4}});
  EXPECT_DOUBLE_EQ(decode_floor(ceilings, {.batch = 2, .context = 5}).seconds, 100 + 2 * 2 * 5);
  EXPECT_DOUBLE_EQ(decode_floor(ceilings, {.batch = 3, .context = 5}).seconds, 3 * 40 + 3 * 2 * 5);
  ceilings.all_reduce_seconds[3] = 0.5;
  const StepFloor floor = decode_floor(ceilings, {.batch = 3, .context = 5});
  EXPECT_DOUBLE_EQ(floor.all_reduce_seconds, 2 * 4 * 0.5);
  EXPECT_DOUBLE_EQ(floor.seconds, 120 + 30 + 4);
}

TEST(DecodeFloor, OfStagesIsAStepThroughAllOrTheSlowestWithEveryStep) {
  const Ceilings ceilings = ceilings_of(
      {{.weight_bytes = 100}, {.weight_bytes = 100}, {.weight_bytes = 160, .kv_bytes_per_token = 1}});
  // A single sequence: through all three. As many as there are stages: the last one has three steps.
  EXPECT_DOUBLE_EQ(decode_floor(ceilings, {.batch = 1, .context = 10, .micro_batches = 3}).seconds, 370);
  EXPECT_DOUBLE_EQ(decode_floor(ceilings, {.batch = 3, .context = 10, .micro_batches = 3}).seconds, 3 * 170);
  // Steps of three of eight sequences, and without look-ahead of all of them.
  EXPECT_DOUBLE_EQ(decode_floor(ceilings, {.batch = 8, .context = 10, .micro_batches = 3}).seconds, 3 * 190);
  EXPECT_DOUBLE_EQ(decode_floor(ceilings, {.batch = 8, .context = 10}).seconds, 360 + 80);
}

TEST(PrefillFloor, TheSlowestStageHasAllTokensTheOthersAStepBeforeAndBehind) {
  const Ceilings ceilings = ceilings_of({{.layer_flops = 3}, {.layer_flops = 5, .unread_flops = 1}});
  EXPECT_DOUBLE_EQ(prefill_floor(ceilings, 100, 100), 100 * 7);  // a single step
  EXPECT_DOUBLE_EQ(prefill_floor(ceilings, 400, 100), 400 * 4 + 100 * 3);
  EXPECT_DOUBLE_EQ(prefill_floor(ceilings, 401, 100), 401 * 4 + 1 * 3);
  Ceilings unknown = ceilings;
  unknown.gemm_flops_per_second = 0;
  EXPECT_EQ(prefill_floor(unknown, 400, 100), 0);
}

std::vector<int> lengths_of(int mean, double ratio, int count) {
  std::mt19937 random(1);
  RandomLengths lengths(mean, ratio, count);
  std::vector<int> drawn;
  for (int i = 0; i < count; ++i) {
    drawn.push_back(lengths.next(random));
    EXPECT_LE(drawn.back(), longest_length(mean, ratio));
  }
  return drawn;
}

TEST(RandomLengths, HaveTheMeanAndFillTheRange) {
  const std::vector<int> drawn = lengths_of(1000, 0.9, 2000);
  EXPECT_EQ(std::accumulate(drawn.begin(), drawn.end(), 0), 2000 * 1000);
  const auto [least, most] = std::minmax_element(drawn.begin(), drawn.end());
  EXPECT_GE(*least, 100);
  EXPECT_LE(*least, 120);
  EXPECT_LE(*most, 1900);
  EXPECT_GE(*most, 1880);
  EXPECT_EQ(drawn[0] + drawn[1], 2 * 1000);
  EXPECT_NE(drawn[0], drawn[2]);
  EXPECT_EQ(lengths_of(1000, 0.9, 2000), drawn) << "the same seed";
  const std::vector<int> odd = lengths_of(1000, 0.9, 3);
  EXPECT_NE(odd[0], 1000);
  EXPECT_EQ(odd[0] + odd[1], 2 * 1000);
  EXPECT_EQ(odd[2], 1000);
}

TEST(RandomLengths, AreAllTheMeanWithoutARange) {
  EXPECT_EQ(lengths_of(7, 0, 5), std::vector<int>(5, 7));
  EXPECT_EQ(lengths_of(1, 0.99, 5), std::vector<int>(5, 1));
  EXPECT_EQ(length_text(7, 0), "7");
  EXPECT_EQ(length_text(1024, 0.9), "1024 ± 90 %");
}

// Prompts are read one a step; a step takes 10 ns for each sequence that decodes in it, and 100 ns besides.
// The second sequence begins when the first one has generated two tokens, the third one when it has three.
TEST(DecodeWindow, IsWhereAllSequencesDecode) {
  std::vector<std::vector<int64_t>> times(3);
  const int64_t steps[] = {0, 110, 230, 360, 490, 600, 700};
  for (size_t i = 0; i < 3; ++i) times[i].assign(steps + i, steps + i + 5);
  const DecodeWindow window = decode_window(times);
  EXPECT_EQ(window.steps, 2);  // from 230 to 490, the end of the first one
  EXPECT_DOUBLE_EQ(window.seconds, 260e-9);
  EXPECT_DOUBLE_EQ(window.tokens_generated, (3 + 2 + 1) / 3.0 + 1);
}

// A step's tokens are handed out one after the other.
TEST(DecodeWindow, CountsWholeSteps) {
  for (int64_t other : {-3, 3}) {
    const DecodeWindow window =
        decode_window({{1000, 2000, 3000}, {1000 + other, 2000 + other, 3000 + other}});
    EXPECT_EQ(window.steps, 2) << other;
    EXPECT_DOUBLE_EQ(window.seconds, 2000e-9) << other;
    EXPECT_DOUBLE_EQ(window.tokens_generated, 2) << other;
  }
  EXPECT_EQ(decode_window({{0, 1000}, {1, 1001}}).steps, 1);
  EXPECT_EQ(decode_window({{1, 1001}, {0, 1000}}).steps, 1);
}

TEST(DecodeWindow, IsEmptyWhereOneEndsBeforeAnotherBegins) {
  EXPECT_EQ(decode_window({{0, 100, 200}, {200, 300, 400}}).steps, 0);
  EXPECT_EQ(decode_window({{0, 100, 200}, {300, 400, 500}}).steps, 0);
  EXPECT_EQ(decode_window({{7}}).steps, 0);
  EXPECT_EQ(decode_window({}).steps, 0);
}

TEST(DecodeWindow, HasHalfOfTheStepsAtLeast) {
  EXPECT_EQ(tokens_for_window(1, 1024, 128, 2048, true), 128);
  EXPECT_EQ(tokens_for_window(1, 32768, 4, 2048, true), 4);
  EXPECT_EQ(tokens_for_window(8, 128, 2, 2048, true), 2 + 2);
  EXPECT_EQ(tokens_for_window(64, 1024, 128, 2048, true), 128);   // 34 steps with prompts
  EXPECT_EQ(tokens_for_window(128, 1024, 128, 2048, true), 135);  // 69 of them
  EXPECT_EQ(tokens_for_window(256, 1024, 64, 2048, true), 181);
  EXPECT_EQ(tokens_for_window(8, 16, 2, 8, true), 2 + 129);
  EXPECT_EQ(tokens_for_window(128, 1024, 128, 2048, false), 194);  // a prompt a step
  EXPECT_EQ(tokens_for_window(4, 4096, 128, 2048, false), 128);
}

// An all-reduce is a reduce-scatter and an all-gather.
TEST(BusFactor, AddsUp) {
  for (int ranks : {2, 3, 4, 8, 16}) {
    EXPECT_DOUBLE_EQ(
        bus_factor(CollectiveKind::kAllReduce, ranks),
        bus_factor(CollectiveKind::kReduceScatter, ranks) + bus_factor(CollectiveKind::kAllGather, ranks));
  }
}

TEST(Collectives, NamesGoThereAndBack) {
  for (const char* name :
       {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send_recv"}) {
    auto kind = parse_collective(name);
    ASSERT_TRUE(kind.ok());
    EXPECT_EQ(to_string(*kind), name);
  }
  EXPECT_EQ(parse_collective("allreduce").status().code(), StatusCode::kInvalidArgument);
}

TEST(ByteSizes, RangesDoubleAndListsStayAsTheyAre) {
  EXPECT_EQ(parse_byte_sizes("--sizes", "4KiB:64KiB").value(),
            (std::vector<int64_t>{4096, 8192, 16384, 32768, 65536}));
  EXPECT_EQ(parse_byte_sizes("--sizes", "16KiB,1MiB").value(), (std::vector<int64_t>{16384, 1 << 20}));
  // An end that doubling does not meet.
  EXPECT_EQ(parse_byte_sizes("--sizes", "1000:3000,8").value(), (std::vector<int64_t>{1000, 2000, 8}));
  for (const char* wrong : {"", "0:4KiB", "8KiB:4KiB", "4XiB", "many"})
    EXPECT_EQ(parse_byte_sizes("--sizes", wrong).status().code(), StatusCode::kInvalidArgument) << wrong;
}

TEST(Quantiles, AreValuesThatWereSeen) {
  std::vector<double> values;
  values.reserve(100);
  for (int i = 100; i > 0; --i) values.push_back(i);
  EXPECT_EQ(quantile(values, 0.5), 50);
  EXPECT_EQ(quantile(values, 0.99), 99);
  EXPECT_EQ(quantile(values, 1.0), 100);
}

TEST(Median, OfAnEvenNumberLiesBetween) {
  EXPECT_EQ(median({4, 1, 2, 9}), 3);
  EXPECT_EQ(median({4, 1, 2}), 2);
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({}), 0);
}

Tensor shaped(DType dtype, std::initializer_list<int64_t> shape) {
  static int64_t memory = 0;  // never read: costs depend on shapes
  return Tensor::contiguous(&memory, dtype, shape);
}

TEST(OpCost, AProductMovesItsWeightAsItIsHeld) {
  kernels::LinearParams linear{.x = shaped(DType::kF32, {3, 64}),
                               .weight = {.scheme = WeightScheme::kQ4_1, .n = 128, .k = 64},
                               .out = shaped(DType::kF32, {3, 128})};
  OpCost cost = OpCosts().of(&linear);
  EXPECT_EQ(cost.bytes, 3 * 64 * 4 + 128 * 2 * 20 + 3 * 128 * 4);
  EXPECT_EQ(cost.flops, 2.0 * 3 * 128 * 64);
}

TEST(OpCost, KeysAndValuesAreWrittenAsTheCacheHoldsThem) {
  for (DType cache : {DType::kBF16, DType::kF8E4M3}) {
    const kernels::RopeAppendParams rope{.qkv = shaped(DType::kBF16, {3, (4 + 2 * 2) * 16}),
                                         .positions = shaped(DType::kI32, {3}),
                                         .kv_slots = shaped(DType::kI32, {3}),
                                         .cos_sin = shaped(DType::kF32, {128, 16}),
                                         .k_cache = shaped(cache, {10, 2, 16, 16}),
                                         .v_cache = shaped(cache, {10, 2, 16, 16}),
                                         .num_heads = 4,
                                         .num_kv_heads = 2};
    const int64_t rotated = 2 * 3 * 4 * 16 * 2;  // Q, there and back
    const int64_t appended = 3 * 2 * 2 * 16;     // elements of K and V
    EXPECT_EQ(OpCosts().of(&rope).bytes,
              rotated + appended * (2 + dtype_bytes(cache)) + 3 * 16 * 4 + 2 * 3 * 4);
  }
}

TEST(OpCost, AttentionReadsTheContextsThatItsPlanNames) {
  // A decode with 100 tokens behind it, itself included, and a prompt of 4 in one chunk.
  const std::vector<int32_t> starts = {0, 1, 5};
  const std::vector<int32_t> contexts = {100, 4};
  kernels::AttentionPlanParams plan{.num_sequences = 2,
                                    .num_tokens = 5,
                                    .query_starts_host = starts.data(),
                                    .context_lens_host = contexts.data()};
  kernels::AttentionParams attention{.q = shaped(DType::kF32, {5, 8 * 16}),
                                     .k_cache = shaped(DType::kBF16, {10, 2, 16, 16}),
                                     .out = shaped(DType::kF32, {5, 8 * 16}),
                                     .num_heads = 8,
                                     .num_kv_heads = 2};
  OpCosts costs;
  costs.of(&plan);
  OpCost cost = costs.of(&attention);
  EXPECT_EQ(cost.bytes, 2.0 * 5 * 128 * 4 + 104.0 * 2 * 2 * 16 * 2);
  // The decode sees 100 keys, the prompt 1 + 2 + 3 + 4.
  EXPECT_EQ(cost.flops, 110.0 * 4 * 8 * 16);
}

}  // namespace
}  // namespace llm_dist::launch
