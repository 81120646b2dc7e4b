#include "cluster/store/group_commit.h"

#include <algorithm>
#include <optional>

#include "src/base/log.h"

namespace llm_dist::cluster {

GroupCommit::GroupCommit(Store& store, Options options)
    : store_(store), options_(std::move(options)), changed_(options_.threads->make_condition()) {
  thread_ = options_.threads->start([this] { run(); });
}

GroupCommit::~GroupCommit() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_->notify_all();
  thread_->join();
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
    changed_->notify_all();
  }
}

Outcome GroupCommit::commit(int64_t at_us, CommandBody body) {
  // Shared with the commit thread, which may still notify when this has its answer.
  struct Answer {
    std::mutex mutex;
    std::unique_ptr<Condition> there;
    std::optional<Outcome> outcome;
  };
  auto answer = std::make_shared<Answer>();
  answer->there = options_.threads->make_condition();
  enqueue(at_us, std::move(body), [answer](const Outcome& outcome) {
    std::lock_guard lock(answer->mutex);
    answer->outcome = outcome;
    answer->there->notify_all();
  });
  std::unique_lock lock(answer->mutex);
  answer->there->wait_for(lock, [&] { return answer->outcome.has_value(); });
  return *answer->outcome;
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
      changed_->wait_for(lock, [this] { return stopping_ || !queue_.empty(); });
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
