// Which slots the attempts that live have: no two the same, however attempts and coordinators end.
#include <gtest/gtest.h>

#include <random>

#include "tests/cluster/supervisor_fixture.h"

namespace llm_dist::cluster {
namespace {

using testing::SupervisorTest;
using enum JobState;
using Numbers = std::vector<int>;

class SupervisorSlotsTest : public SupervisorTest {
 protected:
  Numbers slots(size_t process) { return machine_.processes.at(process).request.slots; }
  // Of every process that runs, each once and within what there is.
  void expect_disjoint() {
    std::set<int> used;
    for (const auto& process : machine_.processes) {
      if (!process.running) continue;
      ASSERT_EQ(std::ssize(process.request.slots), process.request.num_ranks);
      for (int slot : process.request.slots) {
        ASSERT_TRUE(used.insert(slot).second) << "slot " << slot << " is used twice";
        ASSERT_GE(slot, 0);
        ASSERT_LT(slot, machine_.num_slots);
      }
    }
  }
};

TEST_F(SupervisorSlotsTest, AttemptsAtOnceHaveSlotsOfTheirOwn) {
  machine_.num_slots = 8;
  for (const char* more : {"", R"(,"tp":2)", "", R"(,"tp":4)"}) submit(JobKind::kServe, more);
  tick();
  ASSERT_EQ(machine_.processes.size(), 4u);
  EXPECT_EQ(slots(0), Numbers{0});
  EXPECT_EQ(slots(1), (Numbers{2, 3}));
  EXPECT_EQ(slots(2), Numbers{1});
  EXPECT_EQ(slots(3), (Numbers{4, 5, 6, 7}));
  EXPECT_EQ(store_->attempts(2).value().at(0).slot_numbers, (Numbers{2, 3}));
}

TEST_F(SupervisorSlotsTest, AnAdoptedAttemptKeepsItsSlotsAndGivesThemBackOnce) {
  machine_.num_slots = 2;
  submit(JobKind::kServe);
  JobId second = submit(JobKind::kServe);
  tick();
  EXPECT_EQ(slots(1), Numbers{1});
  wish(1, kCancelling);
  machine_.exit(0, 0);
  restart();
  tick();
  submit(JobKind::kServe);
  JobId waits = submit(JobKind::kServe);
  tick();
  ASSERT_EQ(machine_.processes.size(), 3u);
  EXPECT_EQ(slots(2), Numbers{0}) << "the other one lives";
  EXPECT_EQ(state(waits), kQueued);
  restart();
  tick();
  EXPECT_EQ(machine_.processes.size(), 3u);
  wish(second, kCancelling);
  machine_.exit(1, 0);
  tick();
  tick();
  ASSERT_EQ(machine_.processes.size(), 4u);
  EXPECT_EQ(slots(3), Numbers{1});
}

TEST_F(SupervisorSlotsTest, ALaunchThatACrashCutOffHoldsItsSlotsUntilItIsSwept) {
  machine_.num_slots = 2;
  machine_.on_launch = [this] { commits_left_ = 0; };  // its handle is never written
  submit(JobKind::kServe);
  (void)supervisor_->tick();
  machine_.on_launch = nullptr;
  commits_left_ = -1;
  restart();
  machine_.blind = true;  // it cannot be told whether it lives
  submit(JobKind::kServe);
  tick();
  machine_.blind = false;
  ASSERT_EQ(machine_.processes.size(), 2u);
  EXPECT_EQ(slots(0), Numbers{0});
  EXPECT_EQ(slots(1), Numbers{1});
  expect_disjoint();
}

TEST_F(SupervisorSlotsTest, RanksOfAnAttemptNeverShareADevice) {
  machine_.num_slots = 4;
  machine_.num_devices = 2;
  submit(JobKind::kServe);
  submit(JobKind::kServe);
  submit(JobKind::kServe);
  JobId pair = submit(JobKind::kServe, R"(,"tp":2)");
  JobId never = submit(JobKind::kServe, R"(,"tp":4)");
  tick();
  EXPECT_EQ(slots(2), Numbers{2});
  wish(2, kCancelling);
  machine_.exit(1, 0);
  tick();
  EXPECT_EQ(state(pair), kQueued) << "1 and 3 are free, on one device";
  wish(1, kCancelling);
  machine_.exit(0, 0);
  tick();
  tick();
  EXPECT_EQ(slots(3), (Numbers{0, 1}));
  EXPECT_EQ(state(never), kFailed);
  EXPECT_EQ(job(never).message, "4 ranks, and the 4 slots share 2 GPUs");
}

// Random starts, deaths, wishes, crashes and coordinators: afterwards every slot is free again.
TEST_F(SupervisorSlotsTest, NoSlotIsUsedTwiceNorLost) {
  std::mt19937 random(11);
  auto below = [&](size_t most) { return static_cast<size_t>(random()) % most; };
  machine_.num_slots = 5;
  std::vector<JobId> jobs;
  for (int step = 0; step < 400; ++step) {
    if (below(3) == 0)
      jobs.push_back(
          submit(below(2) == 0 ? JobKind::kServe : JobKind::kBench, format(R"(,"tp":{})", 1 + below(3))));
    for (size_t process = 0; process < machine_.processes.size(); ++process) {
      if (machine_.processes[process].running && below(8) == 0) machine_.exit(process, 1);
    }
    if (!jobs.empty() && below(3) == 0) {
      JobId id = jobs[below(jobs.size())];
      if (may_become(state(id), kCancelling)) wish(id, kCancelling);
    }
    commits_left_ = below(10) == 0 ? static_cast<int>(below(4)) : -1;
    const bool crashed = !supervisor_->tick().ok();
    commits_left_ = -1;
    now_us_ += 30 * testing::kSecond;
    if (crashed || below(20) == 0) restart();
    expect_disjoint();
    if (HasFatalFailure()) return;
  }
  for (JobId id : jobs) {
    if (may_become(state(id), kCancelled)) wish(id, kCancelled);
    if (may_become(state(id), kCancelling)) wish(id, kCancelling);
  }
  for (size_t process = 0; process < machine_.processes.size(); ++process) machine_.exit(process, 0);
  for (int i = 0; i < 4; ++i) tick(100);
  EXPECT_TRUE(store_->held_slots().value().empty());
  submit(JobKind::kServe, R"(,"tp":5)");
  tick();
  EXPECT_EQ(machine_.processes.back().request.slots, (Numbers{0, 1, 2, 3, 4}));
}

}  // namespace
}  // namespace llm_dist::cluster
