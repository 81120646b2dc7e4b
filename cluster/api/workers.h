// A few threads for what may wait for the disk: the I/O threads hand it over.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "src/base/bounded_queue.h"
#include "src/http/server.h"

namespace llm_dist::cluster {

class Workers {
 public:
  explicit Workers(int num_threads, size_t max_queued = 4096) : queue_(max_queued) {
    for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
  }
  ~Workers() { stop(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // False: too much is queued already, or it was stopped.
  bool run(std::function<void()> work) { return queue_.try_push(work); }
  // Finishes what is queued.
  void stop() {
    queue_.close();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  void run() {
    while (true) {
      auto work = queue_.pop(Deadline::after(std::chrono::seconds(1)));
      if (work) {
        (*work)();
      } else if (queue_.closed()) {
        return;
      }
    }
  }

  BoundedQueue<std::function<void()>> queue_;
  std::vector<std::thread> threads_;
};

// A handler whose work one of them does. 503 when too much waits for them already.
using Work = std::function<void(const http::Request&, const std::shared_ptr<http::ResponseWriter>&)>;
http::Handler on_worker(Workers& workers, Work work);

}  // namespace llm_dist::cluster
