// What the supervisor makes of trouble that is not the jobs' own: clocks that are set, its own end, launches
// that fail, processes that nobody can look at.
#include <gtest/gtest.h>

#include "tests/cluster/supervisor_fixture.h"

namespace llm_dist::cluster {
namespace {

using testing::SupervisorTest;
using enum JobState;

TEST_F(SupervisorTest, AClockThatIsSetBackKeepsNobodyWaiting) {
  JobId id = submit(JobKind::kServe);
  tick();
  machine_.exit(0, 1);
  tick();
  EXPECT_EQ(state(id), kRecovering);
  set_clock(-std::chrono::hours(10));
  tick(2);
  EXPECT_EQ(state(id), kStarting);
}

TEST_F(SupervisorTest, AClockThatIsSetForwardEndsNobodysStart) {
  JobId id = submit(JobKind::kServe);
  tick();
  set_clock(std::chrono::hours(10));
  tick();
  tick();
  EXPECT_EQ(machine_.processes[0].num_terminates, 0);
  set_clock(-std::chrono::hours(20));
  tick(1801);
  EXPECT_EQ(machine_.processes[0].num_terminates, 1) << "and one that is set back does not draw it out";
  machine_.exit(0, 143);
  tick();
  EXPECT_EQ(job(id).reason, "start_timeout");
}

TEST_F(SupervisorTest, ARestartedCoordinatorAdoptsWhatRuns) {
  JobId id = submit(JobKind::kServe);
  tick();
  enrol(id);
  tick();
  watch_.watched.clear();
  restart();
  tick();
  EXPECT_EQ(state(id), kRunning);
  EXPECT_EQ(machine_.processes.size(), 1u);
  EXPECT_EQ((watch_.watched[{id, 1}]), "http://r1");
}

TEST_F(SupervisorTest, WhatEndedWhileNobodyLookedIsRestarted) {
  JobId id = submit(JobKind::kServe);
  tick();
  enrol(id);
  machine_.processes[0].running = false;  // and its keeper with it: no exit code
  restart();
  tick();
  EXPECT_EQ(state(id), kRecovering);
  EXPECT_EQ(machine_.swept.size(), 1u);
  EXPECT_EQ(job(id).message, "the exit code is unknown");
}

// A crash at every write of a launch: never two launches that live, never one that nobody knows.
TEST_F(SupervisorTest, ACrashDuringALaunchLeavesNothingBehind) {
  for (int commits = 0; commits < 6; ++commits) {
    JobId id = submit(JobKind::kBench);
    commits_left_ = commits;
    (void)supervisor_->tick().ok();
    commits_left_ = -1;
    restart();
    for (int i = 0; i < 4; ++i) tick(100);
    EXPECT_EQ(machine_.num_running(), 1u) << commits;
    EXPECT_EQ(state(id), kRunning) << commits;
    write_result(id);
    machine_.exit(machine_.processes.size() - 1, 0);
    tick();
    tick();
    EXPECT_EQ(state(id), kSucceeded) << commits;
  }
}

TEST_F(SupervisorTest, ALaunchThatFailsIsTriedAgain) {
  JobId id = submit(JobKind::kServe);
  machine_.refuses = true;
  tick();
  EXPECT_EQ(state(id), kRecovering);
  EXPECT_EQ(job(id).message, "no mpirun");
  machine_.refuses = false;
  tick(100);
  EXPECT_EQ(state(id), kStarting);
}

TEST_F(SupervisorTest, WhatCannotBeLookedAtIsNotTakenForDead) {
  JobId id = submit(JobKind::kServe);
  tick();
  enrol(id);
  tick();
  machine_.blind = true;
  for (int i = 0; i < 5; ++i) tick(100);
  EXPECT_EQ(state(id), kRunning);
  EXPECT_EQ(machine_.processes.size(), 1u);
  machine_.processes[0].running = false;  // and its keeper with it
  tick(100);
  EXPECT_EQ(state(id), kRunning) << "nobody knows";
  EXPECT_TRUE(machine_.swept.empty());
  machine_.blind = false;
  tick();
  EXPECT_EQ(state(id), kRecovering);
  EXPECT_EQ(machine_.swept.size(), 1u);
}

TEST_F(SupervisorTest, ALaunchThatIsNotFoundAgainLeavesNothingBehind) {
  JobId id = submit(JobKind::kServe);
  machine_.loses = true;
  tick();
  EXPECT_EQ(machine_.num_running(), 0u);
  EXPECT_EQ(reason_of_attempt(id), "launch_failed");
  machine_.on_launch = [&] { machine_.blind = true; };
  tick(100);
  EXPECT_EQ(machine_.num_running(), 1u);
  EXPECT_EQ(state(id), kStarting) << "while it may live";
  machine_.loses = false;
  tick(100);
  EXPECT_EQ(machine_.processes.size(), 2u) << "no second one is started beside it";
  machine_.blind = false;
  tick();
  EXPECT_EQ(machine_.num_running(), 0u);
  EXPECT_EQ(reason_of_attempt(id), "launch_interrupted");
}

TEST_F(SupervisorTest, AnEndThatCouldNotBeAskedForIsAskedForAgain) {
  JobId id = submit(JobKind::kServe);
  tick();
  wish(id, kCancelling);
  machine_.cannot_stop = true;
  tick(100);
  machine_.cannot_stop = false;
  tick(100);
  EXPECT_EQ(machine_.processes[0].num_terminates, 1);
  machine_.cannot_stop = true;
  tick(100);
  machine_.cannot_stop = false;
  tick();
  EXPECT_EQ(machine_.processes[0].num_kills, 1);
}

TEST_F(SupervisorTest, LaunchesThatAlwaysFailAreGivenUp) {
  JobId replica = submit(JobKind::kServe);
  JobId bench = submit(JobKind::kBench);
  machine_.refuses = true;
  for (int i = 0; i < 20; ++i) tick(100);
  EXPECT_EQ(state(replica), kFailed);
  EXPECT_EQ(job(replica).reason, "crash_loop");
  EXPECT_EQ(job(replica).attempt, 8);
  EXPECT_EQ(job(bench).reason, "attempts_exhausted");
  EXPECT_EQ(job(bench).attempt, 3);
  EXPECT_EQ(job(bench).message, "no mpirun");
}

TEST_F(SupervisorTest, AWishDuringALaunchThatFailsIsKept) {
  machine_.refuses = true;
  JobId suspended = submit(JobKind::kServe);
  machine_.on_launch = [&] { wish(suspended, kStarting, Intent::kSuspend); };
  tick();
  EXPECT_EQ(state(suspended), kSuspended);
  JobId cancelled = submit(JobKind::kServe);
  machine_.on_launch = [&] { wish(cancelled, kCancelling); };
  tick();
  EXPECT_EQ(state(cancelled), kCancelled);
}

}  // namespace
}  // namespace llm_dist::cluster
