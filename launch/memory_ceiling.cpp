#include "launch/memory_ceiling.h"

#include <algorithm>
#include <atomic>
#include <barrier>
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

}  // namespace

double measured_read_bandwidth(int threads, int64_t bytes) {
  std::vector<uint64_t> buffer(static_cast<size_t>(std::max(bytes, kLeastBytes)) / sizeof(uint64_t), 1);
  size_t share = buffer.size() / static_cast<size_t>(threads);
  std::atomic<uint64_t> sink{0};
  double best_seconds = 1e9;
  bool more = true;
  int passes = 0;
  TimePoint begin = Clock::now();
  TimePoint pass_begin = begin;
  // Runs on one thread while the others stand at the barrier, so it may touch all of the above.
  auto end_pass = [&]() noexcept {
    TimePoint now = Clock::now();
    if (passes++ > 0) best_seconds = std::min(best_seconds, seconds_between(pass_begin, now));
    more = passes < kLeastPasses || seconds_between(begin, now) < kMeasureSeconds;
    pass_begin = Clock::now();
  };
  std::barrier all_read(threads, end_pass);
  std::vector<std::thread> workers;
  workers.reserve(static_cast<size_t>(threads));
  for (int i = 0; i < threads; ++i) {
    workers.emplace_back([&, i] {
      while (more) {
        sink += sum_of(buffer.data() + static_cast<size_t>(i) * share, share);
        all_read.arrive_and_wait();
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  return static_cast<double>(share * static_cast<size_t>(threads) * sizeof(uint64_t)) / best_seconds;
}

}  // namespace llm_dist::launch
