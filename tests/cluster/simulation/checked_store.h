// A store whose every change is checked against the ledger: with the faults of the world's disk, and what a
// mutant lacks.
#pragma once

#include "tests/cluster/crash_vfs.h"
#include "tests/cluster/simulation/ledger.h"
#include "tests/cluster/store_fixture.h"

namespace llm_dist::cluster::simulation {

class CheckedStore : public testing::ForwardingStore {
 public:
  CheckedStore(World& world, Ledger& ledger, testing::CrashVfs& disk, std::unique_ptr<Store> store)
      : ForwardingStore(std::move(store)), world_(world), ledger_(ledger), disk_(disk) {}

  Status apply(std::span<Pending> batch) override;
  // As a coordinator that does not know that it is dead would have it.
  Outcome haunt(CommandBody body, int64_t epoch);

  // Whoever reads may read what has changed when it goes on.
  Result<Job> job(JobId id) override { return late(ForwardingStore::job(id)); }
  Result<std::vector<Job>> jobs(const JobFilter& filter) override;
  Result<std::vector<Attempt>> attempts(JobId job) override { return late(ForwardingStore::attempts(job)); }
  Result<std::vector<Job>> waiting(const WaitingFilter& filter) override {
    return late(ForwardingStore::waiting(filter));
  }

 private:
  template <typename T>
  T late(T found) {
    if (world_.fault(0.05)) world_.await();
    return found;
  }
  void mutate(Pending& pending);
  void break_disk();

  World& world_;
  Ledger& ledger_;
  testing::CrashVfs& disk_;
};

}  // namespace llm_dist::cluster::simulation
