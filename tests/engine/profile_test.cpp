// Profiles: what a step is divided into adds up, on every layout, and disturbed steps do not count.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "src/device/cpu/cpu_backend.h"
#include "src/engine/profile_summary.h"
#include "tests/engine/requests.h"

namespace llm_dist::engine {
namespace {

using kernels::CallKind;

ProfiledStep decode_step(uint64_t number, int64_t begin_us, int64_t step_us, int64_t op_us) {
  auto ns = [](int64_t us) { return us * 1000; };
  ProfiledStep step{.step = number,
                    .tokens = 2,
                    .sequences = 2,
                    .decode_only = true,
                    .begin_ns = ns(begin_us),
                    .end_ns = ns(begin_us + step_us),
                    .ops = {}};
  step.ops.push_back({"linear 8x8", CallKind::kOp, ns(begin_us), ns(begin_us + op_us)});
  step.ops.push_back({"linear 8x8", CallKind::kOp, ns(begin_us + op_us), ns(begin_us + 2 * op_us)});
  step.ops.push_back(
      {"all_reduce", CallKind::kCollective, ns(begin_us + 2 * op_us), ns(begin_us + 2 * op_us + 5)});
  return step;
}

TEST(ProfileSummary, PartsAddUpAndDisturbedStepsDoNotCount) {
  std::vector<ProfiledStep> steps;
  int64_t at = 0;
  for (uint64_t i = 1; i <= 8; ++i) {
    int64_t slow = i == 1 || i == 5 ? 10000 : 0;  // warming up, and somebody else on the machine
    steps.push_back(decode_step(i, at, 100 + slow, 40 + slow / 4));
    at += 100 + slow + 7;
  }
  std::vector<ProfileTable> tables = summarize(steps);
  ASSERT_EQ(tables.size(), 1u);
  const ProfileTable& table = tables[0];
  EXPECT_EQ(table.label(), "decode, batch 2");
  EXPECT_EQ(table.num_steps, 8);
  EXPECT_EQ(table.num_counted, 4);
  EXPECT_NEAR(table.step_us, 100, 1e-6);
  EXPECT_NEAR(table.gaps_us, 15, 1e-6);
  EXPECT_NEAR(table.between_us, 7, 1e-6);
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.rows[0].name, "linear 8x8");
  EXPECT_NEAR(table.rows[0].calls, 2, 1e-6);
  EXPECT_NEAR(table.rows[0].us, 80, 1e-6);
  EXPECT_NEAR(table.us_of(CallKind::kCollective), 5, 1e-6);
}

TEST(ProfileSummary, PromptsOfLikeLengthShareATable) {
  std::vector<ProfiledStep> steps;
  for (int64_t tokens : {100, 128, 129, 7}) {
    ProfiledStep step = decode_step(steps.size() + 1, 0, 100, 10);
    step.decode_only = false;
    step.tokens = tokens;
    steps.push_back(step);
  }
  std::vector<ProfileTable> tables = summarize(steps);
  ASSERT_EQ(tables.size(), 3u);
  EXPECT_EQ(tables[0].label(), "prompt, 7 tokens");
  EXPECT_EQ(tables[1].label(), "prompt, 100 to 128 tokens");
  EXPECT_EQ(tables[2].label(), "prompt, 129 tokens");
}

// Each rank's profile of a run; the backend that pins its stamps outlives the replica.
std::vector<std::vector<ProfiledStep>> profiles_of(const parallel::Layout& layout, size_t capacity) {
  GoldenCase golden = load_golden("grouped");
  std::unique_ptr<device::Backend> backend = device::make_cpu_backend({.threads = 1});
  std::vector<std::unique_ptr<StepProfile>> profiles;
  profiles.reserve(static_cast<size_t>(layout.world_size()));
  for (int i = 0; i < layout.world_size(); ++i)
    profiles.push_back(StepProfile::create(*backend, capacity).value());
  auto hooks = [&](int rank) {
    StepProfile* mine = profiles[static_cast<size_t>(rank)].get();
    return EngineHooks{.observer = mine, .profile = mine};
  };
  auto replica = start(golden, {.engine = golden_options(layout), .hooks = hooks});
  replica->generate({greedy_request({1, 2, 3}, 12), greedy_request({4, 5}, 12)});
  for (const Status& status : replica->stop()) EXPECT_TRUE(status.ok()) << status.to_string();
  replica.reset();
  std::vector<std::vector<ProfiledStep>> all;
  all.reserve(profiles.size());
  for (const auto& profile : profiles) all.push_back(profile->steps());
  return all;
}

void expect_in_order(const ProfiledStep& step) {
  int64_t at = step.begin_ns;
  for (const ProfiledOp& op : step.ops) {
    EXPECT_LE(at, op.begin_ns) << op.name;
    EXPECT_LE(op.begin_ns, op.end_ns) << op.name;
    at = op.end_ns;
  }
  EXPECT_LE(at, step.end_ns);
}

std::set<std::string> names_of(const std::vector<ProfiledStep>& steps) {
  std::set<std::string> names;
  for (const ProfiledStep& step : steps)
    for (const ProfiledOp& op : step.ops) names.insert(op.name);
  return names;
}

TEST(StepProfile, SeesEveryStepOfEveryRank) {
  for (const parallel::Layout& layout : {parallel::Layout{}, parallel::Layout{.tp = 2, .pp = 2}}) {
    SCOPED_TRACE(to_string(layout));
    auto profiles = profiles_of(layout, 1 << 16);
    for (const std::vector<ProfiledStep>& steps : profiles) {
      EXPECT_GE(steps.size(), 12u);
      EXPECT_EQ(steps.size(), profiles[0].size());
      for (const ProfiledStep& step : steps) expect_in_order(step);
    }
    EXPECT_EQ(names_of(profiles[0]).count("gather_tokens"), 1u);
    EXPECT_EQ(names_of(profiles.back()).count("argmax_merge"), 1u);
    EXPECT_EQ(names_of(profiles[0]).count("all_reduce"), layout.tp > 1 ? 1u : 0u);
    EXPECT_EQ(names_of(profiles.back()).count("wait_for_stage"), layout.pp > 1 ? 1u : 0u);
    EXPECT_EQ(names_of(profiles[0]).count("hand_off"), layout.pp > 1 ? 1u : 0u);
  }
}

TEST(StepProfile, HoldsWholeStepsWhenItIsFull) {
  std::vector<ProfiledStep> all = profiles_of({}, 1 << 16)[0];
  ASSERT_GE(all.size(), 3u);
  size_t capacity = all[0].ops.size() + all[1].ops.size() + all[2].ops.size() / 2;
  std::vector<ProfiledStep> some = profiles_of({}, capacity)[0];
  EXPECT_EQ(some.size(), 2u);
  for (const ProfiledStep& step : some) expect_in_order(step);
}

}  // namespace
}  // namespace llm_dist::engine
