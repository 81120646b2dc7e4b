// How far a measurement is, in a file that others read while it runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace llm_dist::launch {

class BenchProgress {
 public:
  // "DONE TOTAL\n" in tokens, in `file`, every half second and at the end. No file: nothing.
  BenchProgress(std::string file, int64_t total);
  ~BenchProgress();
  BenchProgress(const BenchProgress&) = delete;
  BenchProgress& operator=(const BenchProgress&) = delete;

  // One more token, from any thread.
  void add() { done_.fetch_add(1, std::memory_order_relaxed); }

 private:
  void report(const std::stop_token& stop);
  void write();

  const std::string file_;
  const int64_t total_;
  std::atomic<int64_t> done_{0};
  std::mutex mutex_;
  std::jthread reporter_;
};

}  // namespace llm_dist::launch
