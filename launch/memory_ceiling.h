// What the host's memory gives, measured, so that a benchmark can say how near it came.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace llm_dist::launch {

// Bytes a second at which `threads` threads together read the same `bytes` again and again: the best of
// several passes. `bytes` is what the compared work reads each time, so that a cache helps both or neither.
double measured_read_bandwidth(int threads, int64_t bytes);
// Copies as a loader makes them: from memory that no cache holds, lot by lot, into a ring of two lots a
// thread.
class HostCopies {
 public:
  // Takes `source_bytes`, which its threads touch first, so that each has its own near it.
  HostCopies(int threads, int64_t source_bytes, int64_t lot_bytes);
  // Bytes a second over half a second or more. Ranks that share a host measure at the same time, behind a
  // barrier: memory is slower for all then.
  double bytes_per_second();

 private:
  void copy(size_t thread);

  size_t threads_;
  size_t lot_;
  size_t share_;  // of a thread
  std::unique_ptr<char[]> source_;
  std::unique_ptr<char[]> ring_;
};

}  // namespace llm_dist::launch
