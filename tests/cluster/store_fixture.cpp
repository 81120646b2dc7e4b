#include "tests/cluster/store_fixture.h"

#include <vector>

#include "cluster/store/sqlite_store.h"

namespace llm_dist::cluster::testing {

void EveryStore::reopen() {
  store_.reset();
  auto opened = GetParam().open(folder_.file("store"));
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  store_ = std::move(opened).value();
}

std::vector<Implementation> every_store() {
  return {{"sqlite", [](const std::string& place) { return open_sqlite_store({.path = place}); }}};
}

std::string name_of_store(const ::testing::TestParamInfo<Implementation>& instance) {
  return instance.param.name;
}

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
