#include "cluster/store/group_commit.h"

#include <algorithm>
#include <future>

#include "src/base/log.h"

namespace llm_dist::cluster {

GroupCommit::GroupCommit(Store& store, Options options) : store_(store), options_(std::move(options)) {
  thread_ = std::thread([this] { run(); });
}

GroupCommit::~GroupCommit() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void GroupCommit::enqueue(int64_t at_us, CommandBody body, Done done) {
  {
    std::lock_guard lock(mutex_);
    if (queue_.size() < options_.max_queued) {
      Command command{.epoch = store_.epoch(), .at_us = at_us, .body = std::move(body)};
      queue_.push_back({.pending = {.command = std::move(command)}, .done = std::move(done)});
      done = nullptr;
    }
  }
  if (done) {
    done(Outcome(resource_exhausted("too many changes wait to be written")));
  } else {
    changed_.notify_one();
  }
}

Outcome GroupCommit::commit(int64_t at_us, CommandBody body) {
  std::promise<Outcome> promise;
  enqueue(at_us, std::move(body), [&](const Outcome& outcome) { promise.set_value(outcome); });
  return promise.get_future().get();
}

size_t GroupCommit::num_queued() const {
  std::lock_guard lock(mutex_);
  return queue_.size();
}

void GroupCommit::run() {
  std::vector<Entry> batch;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      auto end = queue_.begin() + static_cast<ptrdiff_t>(std::min(queue_.size(), options_.max_batch));
      batch.assign(std::make_move_iterator(queue_.begin()), std::make_move_iterator(end));
      queue_.erase(queue_.begin(), end);
    }
    commit_batch(batch);
    batch.clear();
  }
}

void GroupCommit::commit_batch(std::vector<Entry>& batch) {
  std::vector<Pending> pending;
  pending.reserve(batch.size());
  for (Entry& entry : batch) pending.push_back(std::move(entry.pending));
  Status status = store_.apply(pending);
  if (!status.ok()) log_error("{} changes were not written: {}", batch.size(), status.to_string());
  std::vector<JobId> changed;
  for (const Pending& each : pending) {
    if (each.outcome.ok() && changes_a_job(each.command.body)) changed.push_back(each.outcome.value().id);
  }
  if (options_.on_changed && !changed.empty()) options_.on_changed(changed);
  for (size_t i = 0; i < batch.size(); ++i) batch[i].done(pending[i].outcome);
}

}  // namespace llm_dist::cluster
