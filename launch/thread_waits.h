// How long the threads of a CPU rank wait for each other by looking, before they sleep.
#pragma once

namespace llm_dist::launch {

// GNU's OpenMP looks for milliseconds by default, and so keeps from a core the very thread that it waits for,
// where others compute on the cores too. Its bound is read from the environment before main() begins: where
// neither GOMP_SPINCOUNT nor OMP_WAIT_POLICY says anything, this process is executed anew with a lower one.
// Returns otherwise, or when that cannot be.
void bound_thread_waits(char** argv);

}  // namespace llm_dist::launch
