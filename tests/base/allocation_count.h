// Replaces the program's operator new by one that counts. C libraries such as MPI use malloc, which is not
// counted.
#pragma once

#include <atomic>
#include <cstdint>

namespace llm_dist {

// By all threads, since the program started.
int64_t num_allocations();

// From now on the calling thread's allocations count in `counter` too, which must outlive the thread.
void count_allocations_in(std::atomic<int64_t>& counter);

}  // namespace llm_dist
