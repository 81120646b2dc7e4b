// The supervisor on a clock and a machine that the test moves.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "cluster/store/sqlite_store.h"
#include "cluster/supervisor.h"
#include "tests/cluster/store_fixture.h"

namespace llm_dist::cluster::testing {

inline constexpr int64_t kSecond = 1'000'000;

// A machine whose processes do what the test says. It outlives coordinators.
class FakeMachine : public Launcher {
 public:
  struct Process {
    LaunchRequest request;
    bool running = true;
    std::optional<int> exit_code{};
    std::string last_words{};
    int num_terminates = 0;
    int num_kills = 0;
  };
  std::string_view name() const override { return "fake"; }
  Slots slots() const override { return Slots(num_slots, num_devices == 0 ? num_slots : num_devices); }
  Result<std::string> launch(const LaunchRequest& request) override {
    if (on_launch) on_launch();
    if (refuses) return failed_precondition("no mpirun");
    processes.push_back({.request = request});
    if (loses) return unavailable("no descriptor");
    return std::to_string(processes.size() - 1);
  }
  Result<Observation> observe(const std::string& handle, const std::string&) override {
    if (blind) return unavailable("no descriptor");
    const Process& process = processes[std::stoul(handle)];
    return Observation{
        .running = process.running, .exit_code = process.exit_code, .last_words = process.last_words};
  }
  Status stop(const std::string& handle, StopMode mode) override {
    if (cannot_stop) return unavailable("no descriptor");
    Process& process = processes[std::stoul(handle)];
    (mode == StopMode::kKill ? process.num_kills : process.num_terminates)++;
    return ok_status();
  }
  Result<int> sweep(const std::string& mark, const std::string&) override {
    if (blind) return unavailable("no descriptor");
    int found = 0;
    for (Process& process : processes) {
      if (process.request.mark != mark || !process.running) continue;
      process.running = false;
      ++found;
    }
    swept.insert(mark);
    return found;
  }
  void exit(size_t process, int code, const std::string& last_words = "") {
    processes[process].running = false;
    processes[process].exit_code = code;
    processes[process].last_words = last_words;
  }
  size_t num_running() const {
    return std::count_if(processes.begin(), processes.end(), [](const Process& p) { return p.running; });
  }

  int num_slots = 2;
  int num_devices = 0;  // 0: one for each
  bool refuses = false;
  bool loses = false;  // what it launches: started, and not found again
  bool blind = false;  // cannot look at processes
  bool cannot_stop = false;
  std::function<void()> on_launch;  // while it is being launched
  std::vector<Process> processes;
  std::set<std::string> swept;
};

class FakeWatch : public ReplicaWatch {
 public:
  void watch(const ReplicaAttempt& replica, const std::string& endpoint) override {
    watched[replica] = endpoint;
  }
  void forget(const ReplicaAttempt& replica) override { watched.erase(replica); }
  int64_t failing_us(const ReplicaAttempt&) override { return failing; }
  void drain(const ReplicaAttempt& replica, const std::string& api_key) override {
    drained[watched.at(replica)] = api_key;
  }
  std::map<ReplicaAttempt, std::string> watched;  // their endpoints
  std::map<std::string, std::string> drained;     // endpoints, and the keys that were sent there
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
        .now_us = [this] { return now_us_; },
        .steady_now = [this] { return steady_; }});
  }
  Outcome commit(CommandBody body) {
    if (auto hook = std::exchange(before_commit_, nullptr)) hook();
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
    steady_ += std::chrono::seconds(seconds);
    ASSERT_TRUE(supervisor_->tick().ok());
  }
  Job job(JobId id) { return store_->job(id).value(); }
  JobState state(JobId id) { return job(id).state; }
  std::string reason_of_attempt(JobId id) { return store_->attempts(id).value().back().reason; }
  void enrol(JobId id) { enrol(id, "http://r" + std::to_string(id)); }
  void enrol(JobId id, const std::string& endpoint) {
    ASSERT_TRUE(commit(ChangeJob{.job = id,
                                 .to = JobState::kRunning,
                                 .reason = "registered",
                                 .attempt_change =
                                     AttemptChange{.state = AttemptState::kRunning, .endpoint = endpoint}})
                    .ok());
  }
  void set_clock(std::chrono::seconds by) { now_us_ += by.count() * kSecond; }
  // A user's wish, as the API writes it.
  void wish(JobId id, JobState to, Intent intent = Intent::kNone) {
    ASSERT_TRUE(commit(ChangeJob{.job = id, .to = to, .intent = intent, .reason = "by_user"}).ok());
  }
  // Launches `id` as process `process` and suspends it.
  void start_and_suspend(JobId id, size_t process) {
    tick(100);
    tick();
    ASSERT_EQ(machine_.processes.size(), process + 1);
    wish(id, JobState::kRunning, Intent::kSuspend);
    tick();
    machine_.exit(process, 143);
  }
  void write_result(JobId id) {
    std::string folder = folder_.file("jobs") + "/" + job_name(id) + "/" + std::to_string(job(id).attempt);
    std::filesystem::create_directories(folder);
    std::ofstream(result_file_of(folder)) << "{}";
  }

  TemporaryFolder folder_;
  FakeMachine machine_;
  FakeWatch watch_;
  Catalogue catalogue_;
  int64_t now_us_ = 1'000'000 * kSecond;  // which somebody may set
  TimePoint steady_{};
  int commits_left_ = -1;
  std::function<void()> before_commit_;  // of the next one, once
  std::unique_ptr<Store> store_;
  std::unique_ptr<Supervisor> supervisor_;
};

}  // namespace llm_dist::cluster::testing
