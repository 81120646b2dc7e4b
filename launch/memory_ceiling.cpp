#include "launch/memory_ceiling.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "src/base/clock.h"

namespace llm_dist::launch {
namespace {

constexpr double kMeasureSeconds = 0.5;
constexpr int kLeastPasses = 5;
constexpr int64_t kLeastBytes = int64_t{4} << 20;

// Eight independent sums, so that loads and not the additions set the pace.
__attribute__((target("avx2"))) uint64_t sum_of(const uint64_t* values, size_t count) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i + 8 <= count; i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) sums[lane] += values[i + lane];
  }
  uint64_t total = 0;
  for (uint64_t sum : sums) total += sum;
  return total;
}

struct Passes {
  double best_seconds = 1e9;
  double mean_seconds = 0;
};

// In a pass each thread calls run(thread); the first does not count.
Passes run_passes(int threads, const std::function<void(size_t)>& run) {
  Passes outcome;
  double all_seconds = 0;
  bool more = true;
  int passes = 0;
  TimePoint begin = Clock::now();
  TimePoint pass_begin = begin;
  // Runs on one thread while the others stand at the barrier, so it may touch all of the above.
  auto end_pass = [&]() noexcept {
    TimePoint now = Clock::now();
    if (passes++ > 0) {
      const double seconds = seconds_between(pass_begin, now);
      outcome.best_seconds = std::min(outcome.best_seconds, seconds);
      all_seconds += seconds;
      outcome.mean_seconds = all_seconds / (passes - 1);
    }
    more = passes < kLeastPasses || seconds_between(begin, now) < kMeasureSeconds;
    pass_begin = Clock::now();
  };
  std::barrier all_done(threads, end_pass);
  std::vector<std::thread> workers;
  workers.reserve(static_cast<size_t>(threads));
  for (size_t i = 0; i < static_cast<size_t>(threads); ++i) {
    workers.emplace_back([&, i] {
      while (more) {
        run(i);
        all_done.arrive_and_wait();
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  return outcome;
}

}  // namespace

double measured_read_bandwidth(int threads, int64_t bytes) {
  std::vector<uint64_t> buffer(static_cast<size_t>(std::max(bytes, kLeastBytes)) / sizeof(uint64_t), 1);
  const size_t share = buffer.size() / static_cast<size_t>(threads);
  std::atomic<uint64_t> sink{0};
  const Passes passes =
      run_passes(threads, [&](size_t thread) { sink += sum_of(buffer.data() + thread * share, share); });
  return static_cast<double>(share * static_cast<size_t>(threads) * sizeof(uint64_t)) / passes.best_seconds;
}

HostCopies::HostCopies(int threads, int64_t source_bytes, int64_t lot_bytes)
    : threads_(static_cast<size_t>(threads)),
      lot_(static_cast<size_t>(lot_bytes)),
      share_(static_cast<size_t>(source_bytes) / threads_),
      source_(std::make_unique_for_overwrite<char[]>(share_ * threads_)),
      ring_(std::make_unique_for_overwrite<char[]>(2 * lot_ * threads_)) {
  std::vector<std::jthread> workers;
  workers.reserve(threads_);
  for (size_t thread = 0; thread < threads_; ++thread) {
    workers.emplace_back([this, thread] {
      std::memset(&source_[thread * share_], 1, share_);
      copy(thread);
    });
  }
}

void HostCopies::copy(size_t thread) {
  for (size_t at = 0; at < share_; at += lot_) {
    char* to = &ring_[(2 * thread + at / lot_ % 2) * lot_];
    std::memcpy(to, &source_[thread * share_ + at], std::min(lot_, share_ - at));
  }
}

double HostCopies::bytes_per_second() {
  const Passes passes = run_passes(static_cast<int>(threads_), [this](size_t thread) { copy(thread); });
  return static_cast<double>(share_ * threads_) / passes.mean_seconds;
}

}  // namespace llm_dist::launch
