// How the supervisor starts replicas, looks after them and gives them up.
#include <gtest/gtest.h>

#include "src/http/digest.h"
#include "tests/cluster/supervisor_fixture.h"

namespace llm_dist::cluster {
namespace {

using testing::kSecond;
using testing::SupervisorTest;
using enum JobState;

TEST_F(SupervisorTest, AReplicaStartsAndRegisters) {
  JobId id = submit(JobKind::kServe, R"(,"tp":2,"max_model_len":64)");
  tick();
  EXPECT_EQ(state(id), kStarting);
  const LaunchRequest& request = machine_.processes.at(0).request;
  EXPECT_EQ(request.num_ranks, 2);
  EXPECT_EQ(request.arguments,
            (std::vector<std::string>{"serve",
                                      "/models/m.gguf",
                                      "--port",
                                      "0",
                                      "--served-model-name",
                                      "m",
                                      "--shutdown-timeout",
                                      "30",
                                      "--max-model-len",
                                      "64",
                                      "--tp",
                                      "2",
                                      "--pp",
                                      "1",
                                      "--threads",
                                      "1"}));
  EXPECT_EQ(store_->attempts(id).value().at(0).secret_hash,
            http::sha256_hex(AttemptSecrets("root").registration(id, 1)));
  enrol(id);
  tick();
  EXPECT_EQ(state(id), kRunning);
  EXPECT_EQ((watch_.watched[{id, 1}]), "http://r1");
}

TEST_F(SupervisorTest, AFlagOfTheJobStandsInForTheCataloguesOwn) {
  std::vector<std::string> flags = {"--max-model-len", "2048", "--threads=1", "--no-enable-prefix-caching"};
  catalogue_ = Catalogue({{"m", {.path = "/models/m.gguf", .arguments = flags}}});
  submit(JobKind::kServe, R"(,"max_model_len":64)");
  tick();
  const std::vector<std::string>& arguments = machine_.processes.at(0).request.arguments;
  EXPECT_EQ(std::count(arguments.begin(), arguments.end(), "--max-model-len"), 1);
  EXPECT_EQ(std::count(arguments.begin(), arguments.end(), "2048"), 0);
  EXPECT_EQ(std::vector<std::string>(arguments.end() - 2, arguments.end()),
            (std::vector<std::string>{"--threads=1", "--no-enable-prefix-caching"}));
}

TEST_F(SupervisorTest, ABenchEndsWithItsResult) {
  JobId id = submit(JobKind::kBench);
  tick();
  tick();
  EXPECT_EQ(state(id), kRunning);
  write_result(id);
  machine_.exit(0, 0);
  tick();
  EXPECT_EQ(state(id), kFinalizing);
  tick();
  EXPECT_EQ(state(id), kSucceeded);
  EXPECT_EQ(store_->attempts(id).value().at(0).exit_code, 0);
}

TEST_F(SupervisorTest, ABenchWithoutResultHasFailed) {
  JobId id = submit(JobKind::kBench);
  tick();
  machine_.exit(0, 0);  // before anybody saw it run
  for (int i = 0; i < 3; ++i) tick();
  EXPECT_EQ(state(id), kFailed);
  EXPECT_EQ(job(id).reason, "no_result");
}

TEST_F(SupervisorTest, AFailingBenchIsTriedThreeTimesWithBackOff) {
  JobId id = submit(JobKind::kBench);
  for (size_t attempt = 0; attempt < 3; ++attempt) {
    tick(60);
    tick();
    ASSERT_EQ(machine_.processes.size(), attempt + 1);
    machine_.exit(attempt, 7);
    tick();
    EXPECT_EQ(machine_.processes.size(), attempt + 1) << "no restart without a pause";
  }
  EXPECT_EQ(state(id), kFailed);
  EXPECT_EQ(job(id).reason, "attempts_exhausted");
  EXPECT_EQ(job(id).message, "exit code 7");
}

TEST_F(SupervisorTest, AReplicaThatCrashesIsRestartedUntilItCrashesTooOften) {
  JobId id = submit(JobKind::kServe);
  size_t launches = 0;
  while (state(id) != kFailed && launches < 100) {
    tick(100);
    if (machine_.processes.size() > launches) machine_.exit(launches++, 1);
    tick();
  }
  EXPECT_EQ(launches, 8u);
  EXPECT_EQ(job(id).reason, "crash_loop");
}

TEST_F(SupervisorTest, WhatIsRefusedIsNotTriedAgain) {
  for (JobKind kind : {JobKind::kServe, JobKind::kBench}) {
    for (int code : {78, 100, 114}) {
      SCOPED_TRACE(code);
      JobId id = submit(kind);
      tick();
      machine_.exit(machine_.processes.size() - 1, code, "m.gguf: no such file");
      tick();
      tick();  // a measurement runs from its first look on
      EXPECT_EQ(state(id), kFailed);
      EXPECT_EQ(job(id).reason, "refused");
      EXPECT_EQ(job(id).message, format("exit code {}: m.gguf: no such file", code));
      EXPECT_EQ(store_->attempts(id).value().size(), 1u);
    }
  }
}

TEST_F(SupervisorTest, WhatMayHaveAnotherReasonIsTriedAgain) {
  for (int code : {1, 70, 77, 79, 99, 115, 127, 134, 137}) {
    SCOPED_TRACE(code);
    JobId id = submit(JobKind::kServe);
    tick();
    machine_.exit(machine_.processes.size() - 1, code);
    tick();
    EXPECT_EQ(state(id), kRecovering);
    wish(id, kFailed);
  }
}

TEST_F(SupervisorTest, WhatHasServedIsTriedAgainWhenItIsRefused) {
  JobId id = submit(JobKind::kServe);
  tick();
  enrol(id);
  machine_.exit(0, 137);
  tick();
  tick(100);
  machine_.exit(1, 78);  // the disk with its model is not back yet
  tick();
  EXPECT_EQ(state(id), kRecovering);
}

TEST_F(SupervisorTest, AReplicaThatIsNeverReadyIsGivenUpToo) {
  for (int seconds_to_die : {400, 7200}) {  // while loading; or never, until its time to start is over
    SCOPED_TRACE(seconds_to_die);
    JobId id = submit(JobKind::kServe);
    const size_t before = machine_.processes.size();
    while (state(id) != kFailed && machine_.processes.size() < before + 100) {
      const size_t launches = machine_.processes.size();
      tick(100);
      if (machine_.processes.size() == launches) continue;
      tick(std::min(seconds_to_die, 1900));
      machine_.exit(launches, 1);
      tick();
    }
    EXPECT_EQ(machine_.processes.size() - before, 8u);
    EXPECT_EQ(job(id).reason, "crash_loop");
  }
}

TEST_F(SupervisorTest, WhatLivedLongStartsCountingAnew) {
  JobId id = submit(JobKind::kServe);
  for (size_t launch = 0; launch < 30; ++launch) {
    tick(100);
    ASSERT_EQ(machine_.processes.size(), launch + 1);
    enrol(id);
    tick(600);
    machine_.exit(launch, 1);
    tick();
    ASSERT_EQ(state(id), kRecovering);
  }
}

TEST_F(SupervisorTest, BackOffDoublesUpToItsBound) {
  SupervisorOptions options;
  for (int failures = 1; failures < 40; ++failures) {
    int64_t full = std::min(options.max_backoff_us, options.backoff_us << std::min(failures - 1, 20));
    int64_t wait = backoff_us(options, 5, failures);
    EXPECT_GE(wait, full * 8 / 10);
    EXPECT_LE(wait, full * 12 / 10);
  }
  EXPECT_NE(backoff_us(options, 5, 3), backoff_us(options, 6, 3));
}

TEST_F(SupervisorTest, SlotsAreNeverOverdrawnAndNobodyOvertakes) {
  JobId one = submit(JobKind::kServe);
  JobId two = submit(JobKind::kServe, R"(,"tp":2)");
  JobId three = submit(JobKind::kServe);
  tick();
  tick();
  EXPECT_EQ(state(one), kStarting);
  EXPECT_EQ(state(two), kQueued);
  EXPECT_EQ(state(three), kQueued);
  wish(one, kCancelling);
  tick();
  EXPECT_EQ(state(two), kQueued) << "the slot is free once its process has ended";
  machine_.exit(0, 0);
  tick();
  tick();
  EXPECT_EQ(state(one), kCancelled);
  EXPECT_EQ(state(two), kStarting);
  EXPECT_EQ(state(three), kQueued);
}

TEST_F(SupervisorTest, NobodyOvertakesWhatRecovers) {
  machine_.num_slots = 3;
  JobId large = submit(JobKind::kServe, R"(,"tp":2)");
  tick();
  enrol(large);
  machine_.exit(0, 137);
  tick();
  ASSERT_EQ(state(large), kRecovering);
  JobId small = submit(JobKind::kBench);
  JobId later = submit(JobKind::kBench);
  for (int i = 0; i < 3; ++i) tick();
  EXPECT_EQ(state(small), kRunning) << "beside it there is room";
  EXPECT_EQ(state(later), kQueued) << "in its place there is none, although it pauses before it starts again";
  tick(2);
  EXPECT_EQ(state(large), kStarting);
  EXPECT_EQ(state(later), kQueued);
}

TEST_F(SupervisorTest, AReplicaThatABatchHasMoreHoldsUpNobody) {
  machine_.num_slots = 4;
  catalogue_ = Catalogue({{"m", {.path = "/models/m.gguf"}}}, {{"a", {.max_slots = 1}}});
  const std::string spec = R"({"model":"m"})";
  auto submit_batch = [&](const std::string& project) {
    FileId file = commit(AddFile{.project = project, .filename = "f", .content = project}).value().id;
    SubmitJob job{.project = project, .kind = JobKind::kBatchInference, .spec = spec};
    job.batch = NewBatch{file, "24h", "null", 5, 2, spec};
    return commit(job).value().id;
  };
  auto replica_state = [&](JobId batch) { return store_->batches().replicas(batch).value().at(0).state; };
  JobId at_its_quota = submit_batch("a");
  // More than are looked at in one go.
  for (int i = 0; i < 70; ++i) {
    ASSERT_TRUE(commit(SubmitJob{.project = "a", .kind = JobKind::kServe, .spec = spec}).ok());
  }
  JobId other = submit_batch("b");
  tick();
  EXPECT_EQ(state(at_its_quota), kStarting);
  EXPECT_EQ(replica_state(at_its_quota), kQueued);
  EXPECT_EQ(state(other), kStarting);
  EXPECT_EQ(replica_state(other), kStarting);
}

TEST_F(SupervisorTest, WhatCanNeverFitFails) {
  JobId id = submit(JobKind::kServe, R"(,"tp":3)");
  JobId next = submit(JobKind::kServe);
  tick();
  EXPECT_EQ(job(id).reason, "needs_more_slots");
  EXPECT_EQ(state(next), kStarting);
}

TEST_F(SupervisorTest, AReplicaThatDoesNotAnswerIsKilled) {
  JobId id = submit(JobKind::kServe);
  tick();
  enrol(id);
  tick();
  watch_.failing = 9 * kSecond;
  tick();
  EXPECT_EQ(machine_.processes[0].num_kills, 0);
  watch_.failing = 11 * kSecond;
  tick();
  EXPECT_EQ(machine_.processes[0].num_kills, 1);
  machine_.exit(0, 137);
  tick();
  EXPECT_EQ(state(id), kRecovering);
  EXPECT_EQ(job(id).reason, "unresponsive");
  EXPECT_TRUE(watch_.watched.empty());
}

TEST_F(SupervisorTest, AReplicaIsWatchedWhereAnotherHasJustEnded) {
  JobId older = submit(JobKind::kServe);
  JobId newer = submit(JobKind::kServe);
  tick();
  enrol(newer, "http://r");
  tick();
  machine_.exit(1, 137);
  enrol(older, "http://r");  // the kernel gave it the same port
  tick();
  EXPECT_EQ(state(newer), kRecovering);
  EXPECT_EQ(watch_.watched, (std::map<ReplicaAttempt, std::string>{{{older, 1}, "http://r"}}));
}

TEST_F(SupervisorTest, JobsExpireWhereverTheyAre) {
  machine_.num_slots = 1;
  JobId running = submit(JobKind::kServe, "", now_us_ + 50 * kSecond);
  JobId waiting = submit(JobKind::kServe, "", now_us_ + 50 * kSecond);
  tick();
  enrol(running);
  tick(60);
  EXPECT_EQ(state(waiting), kExpired);
  EXPECT_EQ(watch_.drained.size(), 1u);
  machine_.exit(0, 143);
  tick();
  tick();
  EXPECT_EQ(state(running), kExpired);
}

// Its items and files are another's care; here it is a replica that ends when they are done.
TEST_F(SupervisorTest, ABatchHoldsItsReplicaUntilItsWorkIsDone) {
  FileId file = commit(AddFile{.project = "p", .filename = "f", .content = "c"}).value().id;
  JobId id = commit(SubmitJob{.project = "p",
                              .kind = JobKind::kBatchInference,
                              .spec = R"({"model":"m"})",
                              .batch = NewBatch{file, "24h", "null", 5}})
                 .value()
                 .id;
  tick();
  EXPECT_EQ(machine_.processes.at(0).request.arguments.at(0), "serve");
  enrol(id);
  tick();
  wish(id, kFinalizing);
  tick();
  EXPECT_EQ(watch_.drained.size(), 1u);
  EXPECT_EQ(state(id), kFinalizing);
  machine_.exit(0, 143);
  tick();
  EXPECT_EQ(store_->attempts(id).value().at(0).state, AttemptState::kEnded);
  EXPECT_EQ(store_->attempts(id).value().at(0).reason, "finished");
  tick(1000);
  EXPECT_EQ(state(id), kFinalizing) << "until its files are written";
}

TEST_F(SupervisorTest, ABatchThatGoesOnIsNoCrashLoop) {
  FileId file = commit(AddFile{.project = "p", .filename = "f", .content = "c"}).value().id;
  JobId id = commit(SubmitJob{.project = "p",
                              .kind = JobKind::kBatchInference,
                              .spec = R"({"model":"m"})",
                              .batch = NewBatch{file, "24h", "null", 50}})
                 .value()
                 .id;
  for (size_t launch = 0; launch < 40 && state(id) != kFailed; ++launch) {
    tick(100);
    if (machine_.processes.size() == launch) tick(100);
    enrol(id);
    // An item in each of the first twenty attempts, then none.
    if (launch < 20) {
      auto number = static_cast<int64_t>(launch);
      ASSERT_TRUE(commit(RecordItem{id, job(id).attempt, number, std::to_string(number), true, "l"}).ok());
    }
    machine_.exit(launch, 1);
    tick();
  }
  EXPECT_EQ(state(id), kFailed);
  EXPECT_EQ(job(id).reason, "crash_loop");
  EXPECT_EQ(machine_.processes.size(), 28u);
}

TEST_F(SupervisorTest, AModelThatLeftTheCatalogueFails) {
  JobId id = submit(JobKind::kServe);
  catalogue_ = Catalogue({{"other", {.path = "/x"}}});
  tick();
  EXPECT_EQ(job(id).reason, "model_not_found");
}

}  // namespace
}  // namespace llm_dist::cluster
