#include "cluster/store/group_commit.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "cluster/store/sqlite_store.h"
#include "tests/cluster/crash_vfs.h"
#include "tests/cluster/store_fixture.h"

namespace llm_dist::cluster {
namespace {

using testing::a_job;
using testing::CrashVfs;

class GroupCommitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_sqlite_store({.path = "s", .vfs = disk_.name()});
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    store_ = std::move(opened).value();
  }
  CrashVfs disk_{"group-commit"};
  std::unique_ptr<Store> store_;
};

TEST_F(GroupCommitTest, ManySubmissionsShareOneSync) {
  constexpr int kNumJobs = 200;
  std::atomic<int> num_done = 0;
  int64_t before = disk_.num_syncs();
  disk_.hold_syncs(true);
  {
    GroupCommit commit(*store_, {});
    for (int i = 0; i < kNumJobs; ++i) {
      commit.enqueue(1, a_job(), [&](const Outcome& outcome) { num_done += outcome.ok() ? 1 : 0; });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(num_done, 0);  // nothing is acknowledged before the disk has it
    disk_.hold_syncs(false);
  }
  EXPECT_EQ(num_done, kNumJobs);
  EXPECT_LE(disk_.num_syncs() - before, 4);
  EXPECT_EQ(store_->jobs({.limit = 1000}).value().size(), static_cast<size_t>(kNumJobs));
}

// Clients that wait for each answer share what a slow disk does next.
TEST_F(GroupCommitTest, ASlowDiskIsShared) {
  GroupCommit commit(*store_, {});
  int64_t before = disk_.num_syncs();
  auto wait_until_queued = [&](size_t count) {
    while (commit.num_queued() != count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  for (int n = 0; n < 5; ++n) {
    disk_.hold_syncs(true);
    commit.enqueue(1, a_job(), [](const Outcome& outcome) { EXPECT_TRUE(outcome.ok()); });
    wait_until_queued(0);
    std::vector<std::jthread> clients;
    for (int i = 0; i < 20; ++i) clients.emplace_back([&] { EXPECT_TRUE(commit.commit(1, a_job()).ok()); });
    wait_until_queued(20);
    disk_.hold_syncs(false);
  }
  EXPECT_LE(disk_.num_syncs() - before, 20) << "of 105 submissions";
}

TEST_F(GroupCommitTest, AFullQueueRefusesAtOnce) {
  disk_.hold_syncs(true);
  std::atomic<int> num_refused = 0;
  std::atomic<int> num_taken = 0;
  {
    GroupCommit commit(*store_, {.max_batch = 4, .max_queued = 8});
    for (int i = 0; i < 50; ++i) {
      commit.enqueue(1, a_job(), [&](const Outcome& outcome) {
        if (outcome.ok()) {
          ++num_taken;
        } else {
          EXPECT_EQ(outcome.status().code(), StatusCode::kResourceExhausted);
          ++num_refused;
        }
      });
    }
    EXPECT_GE(num_refused, 50 - 8 - 4);
    disk_.hold_syncs(false);
  }
  EXPECT_EQ(num_taken + num_refused, 50);
}

TEST_F(GroupCommitTest, SaysWhichJobsChangedBeforeItAnswers) {
  std::set<JobId> changed;
  GroupCommit commit(*store_, {.on_changed = [&](const std::vector<JobId>& ids) {
    changed.insert(ids.begin(), ids.end());
  }});
  JobId id = commit.commit(1, a_job()).value().id;
  EXPECT_TRUE(changed.contains(id));
  EXPECT_FALSE(commit.commit(1, ChangeJob{.job = 77, .to = JobState::kFailed}).ok());
  EXPECT_FALSE(changed.contains(77));
}

}  // namespace
}  // namespace llm_dist::cluster
