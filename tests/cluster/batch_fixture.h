// What the tests of files and batches share: a coordinator's parts on a real store, and a machine whose
// replicas are HTTP servers that do what the test says.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cluster/api/batches_api.h"
#include "cluster/api/files_api.h"
#include "cluster/api/jobs_api.h"
#include "cluster/api/overview_api.h"
#include "cluster/api/replicas_api.h"
#include "cluster/batch_runner.h"
#include "cluster/supervisor.h"
#include "src/http/client.h"
#include "src/http/server.h"
#include "tests/cluster/store_fixture.h"

namespace llm_dist::cluster::testing {

class FakeReplica {
 public:
  // What it answers to a prompt; nothing: no answer ever. Any thread.
  using Behaviour = std::function<std::optional<http::Response>(FakeReplica&, const std::string& prompt)>;
  explicit FakeReplica(Behaviour behaviour);
  ~FakeReplica();
  FakeReplica(const FakeReplica&) = delete;
  FakeReplica& operator=(const FakeReplica&) = delete;

  const std::string& url() const { return url_; }
  // As a killed process: its connections break, nobody listens.
  void die();
  bool alive();

 private:
  void handle(const http::Request& request, std::shared_ptr<http::ResponseWriter> writer);

  Behaviour behaviour_;
  std::mutex mutex_;
  bool alive_ = true;
  std::vector<std::shared_ptr<http::ResponseWriter>> unanswered_;
  std::vector<std::thread> threads_;
  std::unique_ptr<http::Server> server_;
  std::string url_;
};

http::Response answer(const std::string& text);
http::Response failure(int status, const std::string& code);

// Each launch is a replica of the given behaviour.
class FakeMachine : public Launcher {
 public:
  std::string_view name() const override { return "fake"; }
  Slots slots() const override { return Slots(2); }
  Result<std::string> launch(const LaunchRequest& request) override;
  Result<Observation> observe(const std::string& handle, const std::string& folder) override;
  Status stop(const std::string& handle, StopMode mode) override;
  Result<int> sweep(const std::string& mark, const std::string& folder) override;
  FakeReplica& last() { return *replicas.back(); }

  FakeReplica::Behaviour behaviour;
  std::vector<std::unique_ptr<FakeReplica>> replicas;
};

class FakeWatch : public ReplicaWatch {
 public:
  void watch(const ReplicaAttempt&, const std::string&) override {}
  void forget(const ReplicaAttempt&) override {}
  int64_t failing_us(const ReplicaAttempt&) override { return 0; }
  void drain(const ReplicaAttempt&, const std::string&) override {}
};

class BatchFixture : public ::testing::Test {
 protected:
  struct Reply {
    int status = 0;
    nlohmann::json body;
    std::string text;
    http::Headers headers{};
  };

  void SetUp() override;
  void TearDown() override;
  // Another coordinator on the same store, while the machine goes on.
  void restart();
  void stop_coordinator();

  Reply send(const std::string& method,
             const std::string& path,
             const std::string& body = "",
             http::Headers headers = {});
  Reply upload(const std::string& content, const std::string& purpose = "batch");
  // A file of these prompts, as items "id-0", "id-1"…; the batch's id.
  std::string make_batch(const std::vector<std::string>& prompts,
                         const std::string& window = "24h",
                         int num_replicas = 1);
  nlohmann::json batch(const std::string& id) { return send("GET", "/v1/batches/" + id).body; }
  Job job(const std::string& batch_id) { return store_->job(parse_batch_name(batch_id).value()).value(); }
  // One look of supervisor and runner; replicas register.
  void tick();
  void run_until(const std::function<bool()>& condition);
  void run_to_end(const std::string& id);
  // The lines of a file of the batch by custom_id; each may be there once.
  std::map<std::string, nlohmann::json> lines(const std::string& id, const char* field);
  Batch stored(const std::string& id) {
    return store_->batches().batch(parse_batch_name(id).value()).value();
  }
  int64_t num_recorded(const std::string& id) { return stored(id).completed + stored(id).failed; }
  // Where the content of a batch's input file is.
  std::string input_path(const std::string& id) {
    return contents_.path(store_->batches().file(stored(id).input_file).value().content);
  }
  ptrdiff_t num_contents() const;
  int times_executed();
  int times_executed(const std::string& prompt);
  // Counts, then does what `then` says, or answers.
  FakeReplica::Behaviour counting(FakeReplica::Behaviour then = nullptr);

  TemporaryFolder folder_;
  Catalogue catalogue_{{{"m", {.path = "/m.gguf", .max_ranks = 4}}}};
  FileContents contents_{folder_.file("files")};
  AttemptSecrets secrets_{"root"};
  Access access_{std::vector<AccessKey>()};
  FakeMachine machine_;
  FakeWatch watch_;
  BatchRunOptions options_{.concurrency = 4,
                           .backoff = std::chrono::milliseconds(2),
                           .max_backoff = std::chrono::milliseconds(20)};
  std::shared_ptr<Threads> threads_ = system_threads();  // of the runner
  std::mutex mutex_;
  std::map<std::string, int> executed_;  // under mutex_
  int64_t clock_offset_us_ = 0;
  std::unique_ptr<Store> store_;
  std::unique_ptr<EventFeed> feed_;
  std::unique_ptr<JobsApi> jobs_;
  std::unique_ptr<FilesApi> files_;
  std::unique_ptr<BatchesApi> batches_;
  std::unique_ptr<ReplicasApi> replicas_;
  std::unique_ptr<ReplicaLoads> loads_;
  std::unique_ptr<OverviewApi> overview_;
  std::unique_ptr<Workers> workers_;
  std::unique_ptr<GroupCommit> commit_;  // what is queued when it ends still calls the above
  std::unique_ptr<http::Router> router_;
  std::unique_ptr<http::Server> server_;
  std::unique_ptr<Supervisor> supervisor_;
  std::unique_ptr<BatchRunner> runner_;
};

// A line of an input file.
std::string item_line(const std::string& custom_id,
                      const std::string& prompt,
                      const std::string& model = "m");

}  // namespace llm_dist::cluster::testing
