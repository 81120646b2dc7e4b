#include "tests/cluster/store_fixture.h"

#include <vector>

namespace llm_dist::cluster::testing {

SubmitJob a_job(std::string key, std::string hash) {
  return {.project = "p",
          .kind = JobKind::kBench,
          .spec = R"({"model":"m"})",
          .idempotency = {.key = std::move(key), .body_hash = std::move(hash)}};
}

Pending pending(const Store& store, CommandBody body, int64_t epoch, int64_t at_us) {
  Pending made;
  made.command.epoch = epoch < 0 ? store.epoch() : epoch;
  made.command.at_us = at_us;
  made.command.body = std::move(body);
  return made;
}

Outcome apply_one(Store& store, CommandBody body, int64_t epoch) {
  std::vector<Pending> batch = {pending(store, std::move(body), epoch)};
  Status status = store.apply(batch);
  return status.ok() ? batch[0].outcome : Outcome(status);
}

ChangeJob to_state(JobId job, JobState state) {
  ChangeJob change{.job = job, .to = state, .reason = "test"};
  if (state != JobState::kRunning && state != JobState::kCancelling && state != JobState::kFinalizing) {
    change.attempt_change = AttemptChange{.state = AttemptState::kEnded};
  }
  return change;
}

}  // namespace llm_dist::cluster::testing
