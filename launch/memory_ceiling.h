// What the host's memory gives, measured, so that a benchmark can say how near it came.
#pragma once

namespace llm_dist::launch {

// Bytes a second that `threads` threads read together from a buffer far larger than the caches; the best of
// several passes.
double measured_read_bandwidth(int threads);

}  // namespace llm_dist::launch
