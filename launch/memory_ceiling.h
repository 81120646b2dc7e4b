// What the host's memory gives, measured, so that a benchmark can say how near it came.
#pragma once

#include <cstdint>

namespace llm_dist::launch {

// Bytes a second at which `threads` threads together read the same `bytes` again and again: the best of
// several passes. `bytes` is what the compared work reads each time, so that a cache helps both or neither.
double measured_read_bandwidth(int threads, int64_t bytes);
// The same of copies: each thread its share of `source_bytes`, over and over into its share of `ring_bytes`,
// as a file's pages are read into memory that is used again.
double measured_copy_bandwidth(int threads, int64_t source_bytes, int64_t ring_bytes);

}  // namespace llm_dist::launch
