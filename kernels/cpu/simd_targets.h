// Comes before Highway in every file that uses it.
#pragma once

// A state is made on CPUs with AVX2, FMA and F16C only (cpu_op_state.h), so nothing weaker is compiled.
#define HWY_BASELINE_TARGETS HWY_AVX2
