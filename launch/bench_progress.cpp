#include "launch/bench_progress.h"

#include <chrono>
#include <condition_variable>
#include <utility>

#include "launch/whole_file.h"
#include "src/base/format.h"
#include "src/base/log.h"

namespace llm_dist::launch {
namespace {
constexpr auto kBetween = std::chrono::milliseconds(500);
}  // namespace

BenchProgress::BenchProgress(std::string file, int64_t total) : file_(std::move(file)), total_(total) {
  if (file_.empty()) return;
  write();
  reporter_ = std::jthread([this](const std::stop_token& stop) { report(stop); });
}

BenchProgress::~BenchProgress() {
  if (file_.empty()) return;
  reporter_.request_stop();
  reporter_.join();
  write();
}

void BenchProgress::report(const std::stop_token& stop) {
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex_);
  while (!stopped.wait_for(lock, stop, kBetween, [&] { return stop.stop_requested(); })) write();
}

void BenchProgress::write() {
  Status status = write_whole_file(file_, format("{} {}\n", done_.load(std::memory_order_relaxed), total_));
  if (!status.ok()) log_warning("--progress-file {}", status.message());
}

}  // namespace llm_dist::launch
