// Counts the executable's operator new; C libraries such as MPI use malloc and are not counted.
#pragma once

#include <cstdint>

namespace llm_dist {
int64_t num_allocations();
}  // namespace llm_dist
