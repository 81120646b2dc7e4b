// Ledger: what was promised, outside of the store, and the check of each change against it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "cluster/file_contents.h"
#include "cluster/store/store.h"
#include "tests/cluster/simulation/machine.h"
#include "tests/cluster/simulation/world.h"

namespace llm_dist::cluster::simulation {

class Ledger {
 public:
  Ledger(World& world, const Machine& machine, std::string files)
      : world_(world), machine_(machine), contents_(std::move(files)) {}

  // Before and after a transaction that the store says is durable.
  void before(const CommandBody& body);
  void after(Store& store, const Pending& pending);
  // Everything, on a store that was opened anew: nothing known may be missing, and what nobody was told of is
  // now known.
  void check_all(Store& store);
  // Nothing is left that would still have to happen.
  void check_ended(Store& store);

  // A client was answered. `token` is a number that no two requests share; see token_of().
  void acknowledged(int64_t token, JobId id);
  // Of what was answered: no read may show less.
  int64_t version_of(JobId job) const;
  bool is_removed(JobId job) const { return removed_.contains(job); }
  // Another request to retry the job was sent.
  void may_be_retried(JobId job) { ++retries_asked_[job]; }
  std::vector<JobId> jobs() const;

 private:
  struct Known {
    JobKind kind = JobKind::kServe;
    std::vector<Event> events{};
    std::set<int64_t> recorded{};  // items
    int64_t total = 0;             // of items
  };
  void learn(Store& store, JobId id);
  void check_new(const Job& job);
  void check_events(Known& known, const Job& job, const std::vector<Event>& events);
  void check_attempts(Store& store, const Job& job);
  void check_items(Store& store, JobId id);
  void check_files(Store& store, const Batch& batch);
  void recorded(const RecordItem& record);

  World& world_;
  const Machine& machine_;
  const FileContents contents_;
  std::map<JobId, Known> known_;
  std::map<int64_t, JobId> by_token_;
  std::map<JobId, int> retries_asked_;
  std::map<JobId, int> retries_made_;
  std::set<JobId> removed_;
  JobId newest_ = 0;
};

// What the request that made the job was marked with.
int64_t token_of(const Job& job);

}  // namespace llm_dist::cluster::simulation
