// A few threads for what may wait for the disk: the I/O threads hand it over.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "src/base/bounded_queue.h"

namespace llm_dist::cluster {

class Workers {
 public:
  explicit Workers(int num_threads, size_t max_queued = 4096) : queue_(max_queued) {
    for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
  }
  // Finishes what is queued.
  ~Workers() {
    queue_.close();
    for (std::thread& thread : threads_) thread.join();
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // False: too much is queued already.
  bool run(std::function<void()> work) { return queue_.try_push(work); }

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

}  // namespace llm_dist::cluster
