// BatchRunner: looks after every batch that is not closed. Like the supervisor it holds nothing that the
// store does not: each tick reads the store and does what follows. The supervisor cares for the processes of
// a batch's jobs, this for its items and files, and for that its other replicas follow its own job.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cluster/attempt_plan.h"
#include "cluster/batch_run.h"
#include "cluster/file_contents.h"
#include "cluster/store/store.h"

namespace llm_dist::cluster {

class BatchRunner {
 public:
  struct Parts {
    Store& store;
    std::function<Outcome(CommandBody)> commit;  // durable when it returns
    BatchRun::Enqueue enqueue;
    const FileContents& contents;
    const AttemptSecrets& secrets;
    std::function<void()> wake;  // asks for a tick; from any thread
    BatchRunOptions options{};
    Duration rest_after_failure = std::chrono::seconds(5);  // of a batch whose care failed
    std::shared_ptr<Threads> threads = system_threads();
    MakeItemClient connect = make_http_item_client;
    uint64_t seed = std::random_device{}();
  };
  explicit BatchRunner(Parts parts) : parts_(std::move(parts)) {}

  // One look at everything. Writing a batch's files may take it a while. A batch whose care fails is logged
  // and tried again; an error of the store is returned.
  Status tick();

 private:
  // A replica that takes items now.
  struct Serving {
    ReplicaAttempt attempt;
    std::string url;
  };

  Status look_after(JobId id);
  Result<bool> lead(const Job& job, const std::vector<Job>& replicas);
  Result<std::vector<Serving>> serving(const Job& job, const std::vector<Job>& replicas);
  Status end_lanes(const Job& job, const std::vector<Serving>& serving);
  Status run(const Job& job, const Batch& batch, const std::vector<Serving>& serving);
  Status start_run(const Job& job, const Batch& batch);
  Status finalize(const Job& job, const std::string& reason, const std::string& message = "");
  Status close(const Job& job, const Batch& batch);
  Status commit(CommandBody body, JobId job);

  Parts parts_;
  std::map<JobId, std::unique_ptr<BatchRun>> runs_;
  std::map<JobId, TimePoint> resting_until_;
};

}  // namespace llm_dist::cluster
