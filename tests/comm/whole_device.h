// A kernel that needs all of a GPU: a block on each multiprocessor, with all of its shared memory, that wait
// for each other.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace llm_dist::comm {

// On the calling thread's device. met[0]: blocks that have begun, from 0; met[1]: those that have seen all
// others begin, as many as there are multiprocessors unless one found no room within `seconds`. Both in
// device memory.
cudaError_t meet_on_whole_device(uint32_t* met, double seconds, cudaStream_t stream);
int num_multiprocessors();

}  // namespace llm_dist::comm
