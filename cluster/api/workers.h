// A few threads for what may wait for the disk: the I/O threads hand it over.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "cluster/threads.h"
#include "src/http/server.h"

namespace llm_dist::cluster {

class Workers {
 public:
  explicit Workers(int num_threads,
                   size_t max_queued = 4096,
                   const std::shared_ptr<Threads>& threads = system_threads());
  ~Workers() { stop(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // False: too much is queued already, or it was stopped.
  bool run(std::function<void()> work);
  // Finishes what is queued.
  void stop();

 private:
  void work_off();

  const size_t max_queued_;
  std::mutex mutex_;
  const std::unique_ptr<Condition> changed_;
  std::deque<std::function<void()>> queue_;  // under mutex_
  bool stopping_ = false;                    // under mutex_
  std::vector<std::unique_ptr<Thread>> threads_;
};

// A handler whose work one of them does. 503 when too much waits for them already.
using Work = std::function<void(const http::Request&, const std::shared_ptr<http::ResponseWriter>&)>;
http::Handler on_worker(Workers& workers, Work work);

}  // namespace llm_dist::cluster
