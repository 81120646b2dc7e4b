// EventFeed: answers clients that wait for a job to change, by long poll or as a stream of events. One
// thread, however many wait.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "cluster/store/store.h"
#include "cluster/threads.h"
#include "src/base/clock.h"
#include "src/http/response_writer.h"

namespace llm_dist::cluster {

// One client that waits for one job.
class Watcher {
 public:
  virtual ~Watcher() = default;
  // The job may have changed. True: answered, or the client is gone.
  virtual bool advance(Store& store) = 0;
  // Now and then, and at the deadline.
  virtual bool tick(Store& store, TimePoint now) = 0;
  virtual TimePoint next_tick(TimePoint now) const = 0;
};

using WriterPtr = std::shared_ptr<http::ResponseWriter>;

// Answers with the job once its version is another than `seen`, or, without one, once it has ended. At the
// deadline: 304 with `seen`, else the job as it is.
std::unique_ptr<Watcher> make_long_poll(WriterPtr writer,
                                        JobId job,
                                        std::optional<int64_t> seen,
                                        Deadline deadline);

// Server-sent events, id = the event's number, from the one after `after` to the one that ends the job.
std::unique_ptr<Watcher> make_event_stream(WriterPtr writer, JobId job, int64_t after, TimePoint now);

class EventFeed {
 public:
  static constexpr size_t kMaxWatchers = 4096;

  explicit EventFeed(Store& store, std::shared_ptr<Threads> threads = system_threads());
  // Cuts off whoever still waits.
  ~EventFeed();
  EventFeed(const EventFeed&) = delete;
  EventFeed& operator=(const EventFeed&) = delete;

  // From any thread; never blocks. False: too many wait already.
  bool add(JobId job, std::unique_ptr<Watcher> watcher);
  void changed(const std::vector<JobId>& jobs);
  // As the watchers know it.
  TimePoint now() const { return threads_->now(); }

 private:
  void run();
  void advance(const std::set<JobId>& jobs);
  void tick();
  TimePoint next_tick() const;

  Store& store_;
  const std::shared_ptr<Threads> threads_;
  std::mutex mutex_;
  const std::unique_ptr<Condition> wake_;
  std::set<JobId> changed_;                                           // under mutex_
  std::vector<std::pair<JobId, std::unique_ptr<Watcher>>> arriving_;  // under mutex_
  size_t num_watchers_ = 0;                                           // under mutex_
  bool stopping_ = false;                                             // under mutex_
  std::multimap<JobId, std::unique_ptr<Watcher>> watchers_;           // the thread's own
  std::unique_ptr<Thread> thread_;
};

}  // namespace llm_dist::cluster
