// SiLU (Elfwing et al. 2018): x · σ(x).
#pragma once

namespace llm_dist::kernels {

__device__ inline float silu(float x) { return x / (1.0f + __expf(-x)); }
// The same without a division's care for the last bit, in two instructions that are slow: a few units in a
// float's last place beside it, and zero where σ(x) < 2⁻¹²⁶.
__device__ inline float silu_approx(float x) {
  constexpr float kLog2e = 1.44269504f;
  float exponential;
  float inverse;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(exponential) : "f"(-kLog2e * x));
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(inverse) : "f"(1.0f + exponential));
  return x * inverse;
}

}  // namespace llm_dist::kernels
