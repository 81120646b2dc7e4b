// One life of a coordinator: the objects that a coordinator process has, from the opening of the store to the
// last destructor, on the fibers of one group.
#pragma once

#include <memory>
#include <string>

#include "cluster/api/batches_api.h"
#include "cluster/api/files_api.h"
#include "cluster/api/jobs_api.h"
#include "cluster/api/replicas_api.h"
#include "cluster/caretaker.h"
#include "tests/cluster/simulation/checked_store.h"

namespace llm_dist::cluster::simulation {

// What stays when a coordinator goes.
struct Place {
  World& world;
  Ledger& ledger;
  Machine& machine;
  testing::CrashVfs& disk;
  std::string folder;  // of the files that are no database
  bool removes_old_jobs = false;
};

class CoordinatorLife {
 public:
  // Opens the store, by a fiber that may be killed. An error: not now.
  static Result<std::unique_ptr<CoordinatorLife>> begin(const Place& place);
  ~CoordinatorLife();
  CoordinatorLife(const CoordinatorLife&) = delete;
  CoordinatorLife& operator=(const CoordinatorLife&) = delete;

  // Begins to look after jobs.
  void go();
  // Asked to end: as SIGTERM.
  void stop() { caretaker_.stop(); }
  // After a crash nobody is answered.
  const std::shared_ptr<bool> dead = std::make_shared<bool>(false);

  CheckedStore& store() { return *store_; }
  // As the HTTP server would.
  void handle(http::Request request, std::shared_ptr<http::ResponseWriter> writer);

 private:
  CoordinatorLife(const Place& place, std::unique_ptr<CheckedStore> store);
  void add_routes();

  Place place_;
  std::shared_ptr<Fibers> fibers_;
  std::unique_ptr<CheckedStore> store_;
  Catalogue catalogue_;
  AttemptSecrets secrets_{"root"};
  Access access_{{}};
  FileContents contents_;
  std::unique_ptr<ReplicaWatch> watch_;
  Caretaker caretaker_;
  EventFeed feed_;
  JobsApi jobs_api_;
  ReplicasApi replicas_api_;
  FilesApi files_api_;
  BatchesApi batches_api_;
  Workers workers_;
  Workers file_workers_;
  GroupCommit commit_;  // what is queued when it ends still calls the above
  http::Router router_;
};

}  // namespace llm_dist::cluster::simulation
