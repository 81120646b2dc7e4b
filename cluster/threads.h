// Threads: what the coordinator's classes run on, wait with and read the time from. A simulation brings its
// own, in which a seed decides what happens when.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "src/base/clock.h"

namespace llm_dist::cluster {

// As std::condition_variable.
class Condition {
 public:
  virtual ~Condition() = default;
  virtual void notify_all() = 0;
  // Until it is notified, or for no reason.
  virtual void wait(std::unique_lock<std::mutex>& lock) = 0;
  // False: it is `until`.
  virtual bool wait_until(std::unique_lock<std::mutex>& lock, TimePoint until) = 0;

  template <typename Predicate>
  void wait_for(std::unique_lock<std::mutex>& lock, const Predicate& ready) {
    while (!ready()) wait(lock);
  }
  // Whether it is ready.
  template <typename Predicate>
  bool wait_for(std::unique_lock<std::mutex>& lock, TimePoint until, const Predicate& ready) {
    while (!ready()) {
      if (!wait_until(lock, until)) return ready();
    }
    return true;
  }
};

// One that runs. To be joined before it goes away.
class Thread {
 public:
  virtual ~Thread() = default;
  virtual void join() = 0;
};

class Threads {
 public:
  virtual ~Threads() = default;
  virtual TimePoint now() const = 0;
  virtual std::unique_ptr<Thread> start(std::function<void()> body) = 0;
  virtual std::unique_ptr<Condition> make_condition() = 0;
};

// The system's threads and its steady clock.
std::shared_ptr<Threads> system_threads();

}  // namespace llm_dist::cluster
