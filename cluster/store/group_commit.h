// GroupCommit: many commands share one transaction and one sync. A thread of its own.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "cluster/store/store.h"
#include "cluster/threads.h"

namespace llm_dist::cluster {

class GroupCommit {
 public:
  // On the commit thread, once the outcome is durable: it must not block.
  using Done = std::function<void(const Outcome&)>;
  struct Options {
    size_t max_batch = 256;
    size_t max_queued = 8192;
    // After each commit, before any Done: the jobs that it changed.
    std::function<void(const std::vector<JobId>&)> on_changed{};
    std::shared_ptr<Threads> threads = system_threads();
  };

  GroupCommit(Store& store, Options options);
  // Finishes what is queued.
  ~GroupCommit();
  GroupCommit(const GroupCommit&) = delete;
  GroupCommit& operator=(const GroupCommit&) = delete;

  // Stamped with the store's epoch. A full queue: resource_exhausted, at once, on this thread.
  void enqueue(int64_t at_us, CommandBody body, Done done);
  // enqueue() and wait. Not from the commit thread. Bounded by the disk: each sync ends or fails.
  Outcome commit(int64_t at_us, CommandBody body);
  size_t num_queued() const;

 private:
  struct Entry {
    Pending pending;
    Done done;
  };
  void run();
  void commit_batch(std::vector<Entry>& batch);

  Store& store_;
  const Options options_;
  mutable std::mutex mutex_;
  const std::unique_ptr<Condition> changed_;
  std::vector<Entry> queue_;
  bool stopping_ = false;
  std::unique_ptr<Thread> thread_;
};

}  // namespace llm_dist::cluster
