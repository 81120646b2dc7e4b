#include "launch/memory_ceiling.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "src/base/clock.h"

namespace llm_dist::launch {
namespace {

constexpr size_t kBufferBytes = size_t{512} << 20;

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

double measured_read_bandwidth(int threads) {
  std::vector<uint64_t> buffer(kBufferBytes / sizeof(uint64_t), 1);
  std::atomic<uint64_t> sink{0};
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    TimePoint begin = Clock::now();
    std::vector<std::thread> workers;
    workers.reserve(static_cast<size_t>(threads));
    size_t share = buffer.size() / static_cast<size_t>(threads);
    for (int i = 0; i < threads; ++i) {
      workers.emplace_back([&, i] { sink += sum_of(buffer.data() + static_cast<size_t>(i) * share, share); });
    }
    for (std::thread& worker : workers) worker.join();
    best = std::max(best, static_cast<double>(kBufferBytes) / seconds_between(begin, Clock::now()));
  }
  return best;
}

}  // namespace llm_dist::launch
