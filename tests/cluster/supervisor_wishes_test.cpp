// What users ask of running jobs: cancel, drain, suspend, resume.
#include <gtest/gtest.h>

#include "tests/cluster/supervisor_fixture.h"

namespace llm_dist::cluster {
namespace {

using testing::kSecond;
using testing::SupervisorTest;
using enum JobState;

TEST_F(SupervisorTest, CancellingAsksFirstAndKillsLater) {
  JobId id = submit(JobKind::kServe);
  tick();
  wish(id, kCancelling);
  tick();
  tick(1);
  EXPECT_EQ(machine_.processes[0].num_terminates, 1);
  EXPECT_EQ(machine_.processes[0].num_kills, 0);
  tick(20);
  tick(20);
  EXPECT_EQ(machine_.processes[0].num_kills, 1);
  EXPECT_EQ(state(id), kCancelling) << "not before it has ended";
  machine_.exit(0, 137);
  tick();
  EXPECT_EQ(state(id), kCancelled);
  EXPECT_EQ(job(id).reason, "by_user");
}

TEST_F(SupervisorTest, AClockThatIsSetDoesNotMoveAnEnd) {
  JobId id = submit(JobKind::kServe);
  tick();
  enrol(id);
  wish(id, kCancelling);
  tick();
  set_clock(std::chrono::hours(10));
  tick();
  EXPECT_EQ(machine_.processes[0].num_terminates, 0) << "its drain has just begun";
  set_clock(-std::chrono::hours(20));
  tick(36);
  EXPECT_EQ(machine_.processes[0].num_terminates, 1);
  tick(16);
  EXPECT_EQ(machine_.processes[0].num_kills, 1);
}

TEST_F(SupervisorTest, OpenRequestsAreAnsweredFirst) {
  JobId id = submit(JobKind::kServe);
  tick();
  enrol(id);
  wish(id, kCancelling);
  tick();
  EXPECT_EQ(watch_.drained["http://r1"], AttemptSecrets("root").api_key(id, 1));
  tick(30);
  EXPECT_EQ(machine_.processes[0].num_terminates, 0);
  machine_.exit(0, 0);
  tick();
  EXPECT_EQ(state(id), kCancelled);
  EXPECT_EQ(store_->attempts(id).value().at(0).reason, "cancelled");
}

TEST_F(SupervisorTest, ADrainThatTakesTooLongIsCutOff) {
  JobId id = submit(JobKind::kServe);
  tick();
  enrol(id);
  wish(id, kCancelling);
  tick();
  tick(36);
  EXPECT_EQ(machine_.processes[0].num_terminates, 1);
  tick(10);
  EXPECT_EQ(machine_.processes[0].num_kills, 0);
  tick(6);
  tick(60);
  EXPECT_EQ(machine_.processes[0].num_terminates, 1);
  EXPECT_EQ(machine_.processes[0].num_kills, 1);
}

TEST_F(SupervisorTest, SuspendAndResume) {
  JobId id = submit(JobKind::kServe);
  tick();
  enrol(id);
  wish(id, kRunning, Intent::kSuspend);
  tick();
  EXPECT_EQ(watch_.drained.size(), 1u);
  machine_.exit(0, 0);
  tick();
  EXPECT_EQ(state(id), kSuspended);
  EXPECT_EQ(job(id).intent, Intent::kNone);
  tick(1000);
  EXPECT_EQ(state(id), kSuspended);
  wish(id, kQueued);
  tick();
  EXPECT_EQ(state(id), kStarting);
  EXPECT_EQ(job(id).attempt, 2);
}

TEST_F(SupervisorTest, WhatWasSuspendedHasNotFailed) {
  JobId id = submit(JobKind::kBench);
  for (size_t process = 0; process < 5; ++process) {
    start_and_suspend(id, process);
    tick();
    ASSERT_EQ(state(id), kSuspended);
    wish(id, kQueued);
  }
  tick(100);
  machine_.exit(5, 7);
  tick();
  tick();
  EXPECT_EQ(state(id), kRecovering) << "its first failure";
}

TEST_F(SupervisorTest, WhatWasSuspendedWhileNobodyLookedHasNotFailed) {
  JobId id = submit(JobKind::kBench);
  start_and_suspend(id, 0);
  restart();
  tick();
  EXPECT_EQ(state(id), kSuspended);
  EXPECT_EQ(reason_of_attempt(id), "suspended");
  wish(id, kQueued);
  for (size_t process = 1; process < 3; ++process) {
    tick(100);
    tick();
    machine_.exit(process, 7);
    tick();
  }
  EXPECT_EQ(state(id), kRecovering) << "two failures, and an end that was asked for";
}

TEST_F(SupervisorTest, WhatEndedWhileNobodyLookedEndedAsItWasAskedTo) {
  const int64_t expires_us = now_us_ + 50 * kSecond;
  JobId cancelled = submit(JobKind::kServe);
  JobId expired = submit(JobKind::kServe, "", expires_us);
  tick();
  enrol(cancelled);
  enrol(expired);
  wish(cancelled, kCancelling);
  tick(60);
  machine_.exit(0, 0);
  machine_.exit(1, 0);
  restart();
  tick();
  EXPECT_EQ(reason_of_attempt(cancelled), "cancelled");
  EXPECT_EQ(reason_of_attempt(expired), "expired");
  tick();
  EXPECT_EQ(state(expired), kExpired);
}

TEST_F(SupervisorTest, WhyItEndsIsKnownUntilItIsWritten) {
  JobId bench = submit(JobKind::kBench);
  start_and_suspend(bench, 0);
  commits_left_ = 0;
  EXPECT_FALSE(supervisor_->tick().ok());
  commits_left_ = -1;
  tick();
  EXPECT_EQ(reason_of_attempt(bench), "suspended");
  JobId replica = submit(JobKind::kServe);
  tick();
  enrol(replica);
  tick();
  watch_.failing = 11 * kSecond;
  tick();
  machine_.exit(1, 137);
  commits_left_ = 0;
  EXPECT_FALSE(supervisor_->tick().ok());
  commits_left_ = -1;
  tick();
  EXPECT_EQ(reason_of_attempt(replica), "unresponsive");
  EXPECT_TRUE(watch_.watched.empty());
}

TEST_F(SupervisorTest, WhyItEndsIsKnownWhenAUserIsFaster) {
  JobId id = submit(JobKind::kServe);
  tick();
  enrol(id);
  wish(id, kRunning, Intent::kSuspend);
  tick();
  machine_.exit(0, 143);
  before_commit_ = [&] { wish(id, kRunning); };
  tick();
  EXPECT_EQ(state(id), kRunning);
  tick();
  EXPECT_EQ(state(id), kRecovering);
  EXPECT_EQ(reason_of_attempt(id), "suspended");
}

TEST_F(SupervisorTest, WhatWasResumedWhileItEndedHasNotFailed) {
  machine_.num_slots = 1;
  JobId replica = submit(JobKind::kServe);
  for (size_t process = 0; process < 10; ++process) {
    tick(100);
    ASSERT_EQ(machine_.processes.size(), process + 1);
    enrol(replica);
    wish(replica, kRunning, Intent::kSuspend);
    tick();
    wish(replica, kRunning);  // too late for the process
    machine_.exit(process, 143);
    tick();
    ASSERT_EQ(state(replica), kRecovering) << process;
  }
  wish(replica, kCancelling);
  tick();
  JobId bench = submit(JobKind::kBench);
  for (size_t process = 10; process < 12; ++process) {
    tick(100);
    tick();
    machine_.exit(process, 7);
    tick();
  }
  start_and_suspend(bench, 12);
  wish(bench, kRunning);
  tick();
  EXPECT_EQ(state(bench), kRecovering) << "two failures, and an end that was asked for";
}

}  // namespace
}  // namespace llm_dist::cluster
