#include "tests/cluster/simulation/checked_store.h"

#include <algorithm>

namespace llm_dist::cluster::simulation {
namespace {

constexpr auto kSlowSync = std::chrono::milliseconds(20);

// The store as it is: a read of the ledger's waits for nobody.
class Plain : public testing::ForwardingStore {
 public:
  explicit Plain(testing::ForwardingStore& of) : ForwardingStore(nullptr), of_(of) {}
  Result<Job> job(JobId id) override { return of_.ForwardingStore::job(id); }
  Result<std::vector<Job>> jobs(const JobFilter& filter) override {
    return of_.ForwardingStore::jobs(filter);
  }
  Result<std::vector<Event>> events(JobId job, int64_t after, int limit) override {
    return of_.ForwardingStore::events(job, after, limit);
  }
  Result<std::vector<Attempt>> attempts(JobId job) override { return of_.ForwardingStore::attempts(job); }
  BatchStore& batches() override { return of_.ForwardingStore::batches(); }

 private:
  testing::ForwardingStore& of_;
};

}  // namespace

Status CheckedStore::apply(std::span<Pending> batch) {
  world_.await(kSlowSync);
  break_disk();
  for (Pending& pending : batch) {
    ledger_.before(pending.command.body);
    mutate(pending);
  }
  Status status = ForwardingStore::apply(batch);
  if (disk_.crashed()) {
    world_.crash = Crash::kPower;
    throw Killed();
  }
  if (!status.ok()) world_.note("nothing is written: {}", status.message());
  Plain plain(*this);
  for (const Pending& pending : batch) ledger_.after(plain, pending);
  world_.await(kSlowSync);
  return status;
}

void CheckedStore::break_disk() {
  if (!world_.may_crash || disk_.full()) return;
  if (world_.fault(world_.crash_at_await)) {
    disk_.crash_after(1 + world_.fibers->below(12));
  } else if (world_.fault(0.01)) {
    world_.note("the next sync fails");
    // What became of the commit is to be found out, and that is not easy either.
    if (world_.fibers->chance(0.5)) {
      disk_.fail_next_sync("-wal");
    } else {
      disk_.fail_next_sync_and_forget("-wal");
    }
    disk_.refuse_openings(static_cast<int>(world_.fibers->below(3)));
    disk_.refuse_checkpoints(static_cast<int>(world_.fibers->below(3)));
  }
}

Outcome CheckedStore::haunt(CommandBody body, int64_t epoch) {
  std::vector<Pending> batch(1);
  batch[0].command = {.epoch = epoch, .at_us = world_.now_us(), .body = std::move(body)};
  mutate(batch[0]);
  Status status = ForwardingStore::apply(batch);
  return status.ok() ? batch[0].outcome : Outcome(status);
}

void CheckedStore::mutate(Pending& pending) {
  CommandBody& body = pending.command.body;
  switch (world_.options.mutant) {
    case Mutant::kNoIdempotency:
      if (auto* submit = std::get_if<SubmitJob>(&body)) submit->idempotency = {};
      return;
    case Mutant::kNoEpochCheck: pending.command.epoch = epoch(); return;
    case Mutant::kNoAttemptCheck:
      if (auto* record = std::get_if<RecordItem>(&body)) {
        Result<Job> job = ForwardingStore::job(record->job);
        if (job.ok()) record->attempt = job.value().attempt;
      }
      return;
    default: return;
  }
}

Result<std::vector<Job>> CheckedStore::jobs(const JobFilter& filter) {
  Result<std::vector<Job>> found = ForwardingStore::jobs(filter);
  if (found.ok() && world_.options.mutant == Mutant::kForgetsToAdopt && !filter.states.empty()) {
    std::erase_if(found.value(), [&](const Job& job) { return job.epoch != epoch(); });
  }
  return late(std::move(found));
}

}  // namespace llm_dist::cluster::simulation
