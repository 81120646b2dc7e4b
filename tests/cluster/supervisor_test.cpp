// The supervisor on a clock and a machine that the test moves.
#include "cluster/supervisor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include "cluster/store/sqlite_store.h"
#include "src/http/digest.h"
#include "tests/cluster/store_fixture.h"

namespace llm_dist::cluster {
namespace {

using testing::pending;
using enum JobState;

constexpr int64_t kSecond = 1'000'000;

// A machine whose processes do what the test says. It outlives coordinators.
class FakeMachine : public Launcher {
 public:
  struct Process {
    LaunchRequest request;
    bool running = true;
    std::optional<int> exit_code{};
    int num_terminates = 0;
    int num_kills = 0;
  };
  std::string_view name() const override { return "fake"; }
  int num_slots() const override { return slots; }
  Result<std::string> launch(const LaunchRequest& request) override {
    if (on_launch) on_launch();
    if (refuses) return failed_precondition("no mpirun");
    processes.push_back({.request = request});
    return std::to_string(processes.size() - 1);
  }
  Observation observe(const std::string& handle, const std::string&) override {
    const Process& process = processes[std::stoul(handle)];
    return {.running = process.running, .exit_code = process.exit_code};
  }
  void stop(const std::string& handle, StopMode mode) override {
    Process& process = processes[std::stoul(handle)];
    (mode == StopMode::kKill ? process.num_kills : process.num_terminates)++;
  }
  int sweep(const std::string& mark) override {
    int found = 0;
    for (Process& process : processes) {
      if (process.request.mark != mark || !process.running) continue;
      process.running = false;
      ++found;
    }
    swept.insert(mark);
    return found;
  }
  void exit(size_t process, int code) {
    processes[process].running = false;
    processes[process].exit_code = code;
  }
  size_t num_running() const {
    return std::count_if(processes.begin(), processes.end(), [](const Process& p) { return p.running; });
  }

  int slots = 2;
  bool refuses = false;
  std::function<void()> on_launch;  // while it is being launched
  std::vector<Process> processes;
  std::set<std::string> swept;
};

class FakeWatch : public ReplicaWatch {
 public:
  void watch(const std::string& endpoint) override { watched.insert(endpoint); }
  void forget(const std::string& endpoint) override { watched.erase(endpoint); }
  int64_t failing_us(const std::string&) override { return failing; }
  void drain(const std::string& endpoint, const std::string& api_key) override {
    drained[endpoint] = api_key;
  }
  std::set<std::string> watched;
  std::map<std::string, std::string> drained;
  int64_t failing = 0;
};

class SupervisorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    catalogue_ = Catalogue({{"m", {.path = "/models/m.gguf", .arguments = {"--threads", "1"}}}});
    restart();
  }
  // Another coordinator process on the same machine.
  void restart() {
    supervisor_.reset();
    store_.reset();
    store_ = std::move(open_sqlite_store({.path = folder_.file("store")})).value();
    supervisor_ = std::make_unique<Supervisor>(Supervisor::Parts{
        .store = *store_,
        .commit = [this](CommandBody body) { return commit(std::move(body)); },
        .launcher = machine_,
        .watch = watch_,
        .catalogue = catalogue_,
        .places = {.store_path = folder_.file("store"), .folder = folder_.file("jobs"), .url = "http://c"},
        .secrets = AttemptSecrets("root"),
        .now_us = [this] { return now_us_; }});
  }
  Outcome commit(CommandBody body) {
    if (commits_left_ == 0) return unavailable("crashed");
    if (commits_left_ > 0) --commits_left_;
    std::vector<Pending> batch = {pending(*store_, std::move(body), -1, now_us_)};
    Status status = store_->apply(batch);
    return status.ok() ? batch[0].outcome : Outcome(status);
  }
  JobId submit(JobKind kind, const std::string& more = "", int64_t expires_us = 0) {
    std::string bench = kind == JobKind::kBench ? R"(,"bench":"latency")" : "";
    return commit(SubmitJob{.project = "p",
                            .kind = kind,
                            .spec = R"({"model":"m")" + bench + more + "}",
                            .expires_us = expires_us})
        .value()
        .id;
  }
  void tick(int64_t seconds = 0) {
    now_us_ += seconds * kSecond;
    ASSERT_TRUE(supervisor_->tick().ok());
  }
  Job job(JobId id) { return store_->job(id).value(); }
  JobState state(JobId id) { return job(id).state; }
  void enrol(JobId id) {
    ASSERT_TRUE(
        commit(ChangeJob{.job = id,
                         .to = kRunning,
                         .reason = "registered",
                         .attempt_change = AttemptChange{.state = AttemptState::kRunning,
                                                         .endpoint = "http://r" + std::to_string(id)}})
            .ok());
  }
  // A user's wish, as the API writes it.
  void wish(JobId id, JobState to, Intent intent = Intent::kNone) {
    ASSERT_TRUE(commit(ChangeJob{.job = id, .to = to, .intent = intent, .reason = "by_user"}).ok());
  }
  void start_and_suspend(JobId id, size_t process);
  void write_result(JobId id) {
    std::string folder = folder_.file("jobs") + "/" + job_name(id) + "/" + std::to_string(job(id).attempt);
    std::filesystem::create_directories(folder);
    std::ofstream(result_file_of(folder)) << "{}";
  }

  testing::TemporaryFolder folder_;
  FakeMachine machine_;
  FakeWatch watch_;
  Catalogue catalogue_;
  int64_t now_us_ = 1'000 * kSecond;
  int commits_left_ = -1;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Supervisor> supervisor_;
};

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
  EXPECT_TRUE(watch_.watched.contains("http://r1"));
}

TEST_F(SupervisorTest, AFlagOfTheJobStandsInForTheCataloguesOwn) {
  std::vector<std::string> flags = {
      "--max-model-len", "2048", "--threads=1", "--tp=1", "--no-enable-prefix-caching"};
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

TEST_F(SupervisorTest, NewJobsDoNotOvertakeWhatRecovers) {
  JobId large = submit(JobKind::kServe, R"(,"tp":2)");
  tick();
  enrol(large);
  machine_.exit(0, 1);
  tick();
  ASSERT_EQ(state(large), kRecovering);
  JobId small = submit(JobKind::kServe);
  tick();
  ASSERT_EQ(state(small), kStarting) << "during the back-off there is room";
  JobId later = submit(JobKind::kServe);
  tick(10);
  EXPECT_EQ(state(large), kRecovering);
  EXPECT_EQ(state(later), kQueued) << "a slot is free, and the large one waits for two";
  wish(small, kCancelling);
  machine_.exit(1, 143);
  tick();
  tick();
  EXPECT_EQ(state(large), kStarting);
  EXPECT_EQ(state(later), kQueued);
}

TEST_F(SupervisorTest, WhatCanNeverFitFails) {
  JobId id = submit(JobKind::kServe, R"(,"tp":3)");
  JobId next = submit(JobKind::kServe);
  tick();
  EXPECT_EQ(job(id).reason, "needs_more_slots");
  EXPECT_EQ(state(next), kStarting);
}

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

// Launches `id` as process `process` and suspends it.
void SupervisorTest::start_and_suspend(JobId id, size_t process) {
  tick(100);
  tick();
  ASSERT_EQ(machine_.processes.size(), process + 1);
  wish(id, kRunning, Intent::kSuspend);
  tick();
  machine_.exit(process, 143);
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

TEST_F(SupervisorTest, WhatWasResumedWhileItEndedHasNotFailed) {
  machine_.slots = 1;
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
  EXPECT_TRUE(watch_.watched.contains("http://r1"));
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

TEST_F(SupervisorTest, JobsExpireWhereverTheyAre) {
  machine_.slots = 1;
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
