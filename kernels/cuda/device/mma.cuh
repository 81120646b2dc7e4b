// Matrix products of one warp: m16n8k16 of 16-bit elements with sums in float (PTX ISA, "Matrix fragments for
// mma.m16n8k16"). With g = lane / 4 and q = lane % 4, a thread holds
//   A [16 × 16]: a0 (g, 2q…), a1 (g + 8, 2q…), a2 (g, 2q + 8…), a3 (g + 8, 2q + 8…), two elements each;
//   B [16 × 8]:  b0 (2q…, g), b1 (2q + 8…, g);
//   C [16 × 8]:  c0 (g, 2q), c1 (g, 2q + 1), c2 (g + 8, 2q), c3 (g + 8, 2q + 1).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace llm_dist::kernels {

__device__ inline void mma_16x8x16(__nv_bfloat16,
                                   float (&c)[4],
                                   uint32_t a0,
                                   uint32_t a1,
                                   uint32_t a2,
                                   uint32_t a3,
                                   uint32_t b0,
                                   uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ inline void mma_16x8x16(
    __half, float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// An 8 × 8 matrix, a row in four lanes and two elements in each, to its transpose, likewise.
__device__ inline uint32_t transpose_8x8(uint32_t rows) {
  uint32_t columns;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(columns) : "r"(rows));
  return columns;
}

}  // namespace llm_dist::kernels
