// A stream that waits for a word of memory, with no kernel.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

namespace llm_dist::comm {

bool is_captured(cudaStream_t stream);

// Else none is found to work, of those made from then on.
inline std::atomic<bool> stream_waits_allowed{true};

class StreamWait {
 public:
  // Of the calling thread's device. `clear`: a word of 0 that the device can read; `stream` is tried.
  cudaError_t make(const uint64_t* clear, cudaStream_t stream);
  // Whether streams can.
  bool works() const { return wait_value_ != nullptr; }
  // `stream` goes on when `word` is `least` or more, as signed numbers. Only where it works.
  cudaError_t wait(cudaStream_t stream, const uint64_t* word, uint64_t least) const;

 private:
  void* wait_value_ = nullptr;  // cuStreamWaitValue64
};

}  // namespace llm_dist::comm
