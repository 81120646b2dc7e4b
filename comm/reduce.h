// Element-wise reductions over host memory, the arithmetic of every CPU backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/communicator.h"
#include "src/base/dtype.h"

namespace llm_dist::comm {

// True for f32, f16, bf16, i32 and i64.
bool is_reducible(DType dtype);

// out[i] = parts[0][i] op parts[1][i] op … in that order, so that equal parts give equal bits wherever this
// runs. 16-bit floats are accumulated in float and rounded once. `out` may be one of the parts, and otherwise
// overlaps none; nothing needs to be aligned.
void reduce_parts(
    DType dtype, ReduceOp op, std::span<const std::byte* const> parts, int64_t count, std::byte* out);

}  // namespace llm_dist::comm
