// Caretaker: the two threads that do what nobody asks for: one looks after attempts, one after batches and
// after what is left of old jobs.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "cluster/batch_runner.h"
#include "cluster/retention.h"
#include "cluster/supervisor.h"
#include "cluster/threads.h"

namespace llm_dist::cluster {

class Caretaker {
 public:
  struct Parts {
    Supervisor::Parts supervisor;
    BatchRunner::Parts batches;  // without `wake`
    Retention::Parts retention;
    Duration between_looks = std::chrono::milliseconds(250);  // unless it is woken
    Duration between_removals = std::chrono::minutes(1);
    // What a look ended with: the next one tries again.
    std::function<void(const char* what, const Status& status)> on_error = log_it;
  };
  explicit Caretaker(std::shared_ptr<Threads> threads = system_threads());
  ~Caretaker() { stop(); }
  Caretaker(const Caretaker&) = delete;
  Caretaker& operator=(const Caretaker&) = delete;

  // Once.
  void start(Parts parts);
  // Something has changed. From any thread, also before start().
  void wake();
  // Waits for looks that are under way.
  void stop();

 private:
  static void log_it(const char* what, const Status& status);
  void supervise();
  void run_batches();
  void remove_old_jobs(Retention& retention, TimePoint& next);
  bool sleep(bool& woken);

  const std::shared_ptr<Threads> threads_;
  std::unique_ptr<Parts> parts_;
  std::mutex mutex_;
  const std::unique_ptr<Condition> wake_;
  bool supervisor_woken_ = false;  // under mutex_, as the next two
  bool batches_woken_ = false;
  bool stopping_ = false;
  std::unique_ptr<Thread> supervisor_;
  std::unique_ptr<Thread> batches_;
};

}  // namespace llm_dist::cluster
