// Fork and join over OpenMP: gomp is the runtime that oneDNN brings, and two thread pools would fight for the
// same cores.
#pragma once

#include <algorithm>
#include <cstdint>

namespace llm_dist::kernels {

// gomp's barriers are invisible to ThreadSanitizer, so that build runs one thread.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kForkJoin = false;
#else
inline constexpr bool kForkJoin = true;
#endif

// Splits [0, n) into one contiguous range a thread and calls fn(begin, end, thread) for each that is not
// empty, thread in [0, threads). Ranges hold at least `min_per_thread` items where there are several: below
// that a team costs more than it saves (a fork and join is some 2 to 5 µs).
template <typename F>
void parallel_for(int threads, int64_t n, int64_t min_per_thread, const F& fn) {
  if (n <= 0) return;
  int64_t team = kForkJoin ? std::min<int64_t>(threads, n / std::max<int64_t>(1, min_per_thread)) : 1;
  if (team <= 1) {
    fn(int64_t{0}, n, 0);
    return;
  }
#pragma omp parallel for num_threads(static_cast<int>(team)) schedule(static, 1)
  for (int64_t thread = 0; thread < team; ++thread) {
    fn(n * thread / team, n * (thread + 1) / team, static_cast<int>(thread));
  }
}

}  // namespace llm_dist::kernels
