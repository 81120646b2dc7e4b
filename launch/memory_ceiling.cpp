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

// Of a pass in which each thread calls run(thread): the shortest of several, the first not counted.
double seconds_of_best_pass(int threads, const std::function<void(size_t)>& run) {
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
  return best_seconds;
}

}  // namespace

double measured_read_bandwidth(int threads, int64_t bytes) {
  std::vector<uint64_t> buffer(static_cast<size_t>(std::max(bytes, kLeastBytes)) / sizeof(uint64_t), 1);
  const size_t share = buffer.size() / static_cast<size_t>(threads);
  std::atomic<uint64_t> sink{0};
  const double seconds = seconds_of_best_pass(
      threads, [&](size_t thread) { sink += sum_of(buffer.data() + thread * share, share); });
  return static_cast<double>(share * static_cast<size_t>(threads) * sizeof(uint64_t)) / seconds;
}

double measured_copy_bandwidth(int threads, int64_t source_bytes, int64_t ring_bytes) {
  const auto count = static_cast<size_t>(threads);
  std::vector<char> source(static_cast<size_t>(source_bytes), 1);
  std::vector<char> ring(static_cast<size_t>(ring_bytes), 2);
  const size_t share = source.size() / count;
  const size_t room = ring.size() / count;
  const double seconds = seconds_of_best_pass(threads, [&](size_t thread) {
    for (size_t at = 0; at < share; at += room)
      std::memcpy(&ring[thread * room], &source[thread * share + at], std::min(room, share - at));
  });
  return static_cast<double>(share * count) / seconds;
}

}  // namespace llm_dist::launch
