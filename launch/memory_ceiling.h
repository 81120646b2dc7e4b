// What the host's memory gives, measured, so that a benchmark can say how near it came.
#pragma once

#include <cstdint>

namespace llm_dist::launch {

// Bytes a second at which `threads` threads together read the same `bytes` again and again: the best of
// several passes. `bytes` is what the compared work reads each time, so that a cache helps both or neither.
double measured_read_bandwidth(int threads, int64_t bytes);

}  // namespace llm_dist::launch
