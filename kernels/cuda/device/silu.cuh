// SiLU (Elfwing et al. 2018): x · σ(x).
#pragma once

namespace llm_dist::kernels {

__device__ inline float silu(float x) { return x / (1.0f + __expf(-x)); }

}  // namespace llm_dist::kernels
