// The rotation of a pair of elements (Su et al. 2021).
#pragma once

namespace llm_dist::kernels {

// Elements d and d + head_dim / 2 of a head. Which of the products is rounded is said here, so that every
// kernel makes the same of the same elements.
__device__ inline void rotate_pair(float& first, float& second, float cosine, float sine) {
  const float turned = fmaf(first, cosine, -__fmul_rn(second, sine));
  second = fmaf(second, cosine, __fmul_rn(first, sine));
  first = turned;
}

}  // namespace llm_dist::kernels
