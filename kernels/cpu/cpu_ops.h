// The CPU's op table.
#pragma once

#include "kernels/op_table.h"

namespace llm_dist::kernels {

const OpTable& cpu_ops();

}  // namespace llm_dist::kernels
