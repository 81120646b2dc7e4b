// Matrix products of a warpgroup (four warps): D [64 × N] += A [64 × 16] · Bᵀ, B [N × 16], 16-bit elements
// (where said, A [64 × 32] and B [N × 32] of f8_e4m3), sums in float (PTX ISA, "wgmma.mma_async"); B in
// shared memory, A there or in registers. Needs compute capability 9.0a. With w = warp % 4, g = lane / 4 and
// q = lane % 4, a thread holds of D
//   d[4 j] (16 w + g, 8 j + 2 q), d[4 j + 1] (16 w + g, 8 j + 2 q + 1),
//   d[4 j + 2] (16 w + g + 8, 8 j + 2 q), d[4 j + 3] (16 w + g + 8, 8 j + 2 q + 1),
// and of an A in registers, two elements in each,
//   a[0] (16 w + g, 2 q…), a[1] (16 w + g + 8, 2 q…), a[2] (16 w + g, 2 q + 8…), a[3] (16 w + g + 8, 2 q +
//   8…).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/device/tiles.cuh"
#include "kernels/cuda/device/wgmma_registers.h"

namespace llm_dist::kernels {

// Rows of 128 bytes, 16-byte pieces permuted as TMA's 128-byte swizzle does; eight rows after eight, each
// `eight_rows` bytes behind the ones before, a multiple of 1024 like the place of the first. `tile` may be
// that many 16-element columns further.
__device__ inline uint64_t swizzled_tile(const void* tile, int eight_rows = 1024) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kUnused = uint64_t{1} << 16;  // the leading offset of a swizzled tile
  return kSwizzle128 | static_cast<uint64_t>(eight_rows / 16) << 32 | kUnused |
         ((shared_address(tile) & 0x3ffff) / 16);
}
// The same for a B whose columns lie along the tile's rows: [16 × N] in memory, 64 columns in a row,
// `next_columns` bytes from there to the next 64.
__device__ inline uint64_t swizzled_columns(const void* tile, int eight_rows, int next_columns) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | static_cast<uint64_t>(eight_rows / 16) << 32 |
         static_cast<uint64_t>(next_columns / 16) << 16 | ((shared_address(tile) & 0x3ffff) / 16);
}

inline constexpr int kGroupThreads = 128;  // of a warpgroup

// Its threads meet; warpgroups of a block are numbered.
__device__ inline void barrier_of_group(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(kGroupThreads) : "memory");
}

// What was written to shared memory is seen by products and copies behind the next barrier.
__device__ inline void release_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Values are worked out by here, and not further on.
template <int kCount>
__device__ inline void hold(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

// Before products: the threads have written the sums, and the compiler moves none of that behind it.
template <int kCount>
__device__ inline void products_begin(float (&sums)[kCount]) {
  hold(sums);
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ inline void products_issued() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
// All but the last kInFlight groups of products have read their operands and written the sums; with none in
// flight the sums may be read, and the compiler moves none of that before it.
template <int kInFlight, int kCount>
__device__ inline void products_done(float (&sums)[kCount]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kInFlight) : "memory");
  hold(sums);
}

// multiply_tiles(T, d, a, b): D [64 × N] += A · Bᵀ with T's elements, N / 2 sums d to a thread; a and b are
// swizzled_tile()s. Where A is in registers, they are not to be written until the products are done. The
// instruction names each of its registers, hence a function for every N.

// a_at and b_at: the places of the operands behind the sums.
#define LLM_DIST_MULTIPLY_TILES(T, elements, n, num_sums, a_at, b_at)                      \
  __device__ inline void multiply_tiles(T, float(&d)[num_sums], uint64_t a, uint64_t b) {  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #elements "." #elements \
                 " {" LLM_DIST_SUMS_##num_sums "}, " a_at ", " b_at ", 1, 1, 1, 0, 0;\n"   \
                 : LLM_DIST_D_##num_sums(0)                                                \
                 : "l"(a), "l"(b));                                                        \
  }
// a0_at, …: the places of A's registers; B's columns lie along the tile's rows.
#define LLM_DIST_MULTIPLY_ROWS(name, T, elements, n, num_sums, a0_at, a1_at, a2_at, a3_at, b_at)        \
  __device__ inline void name(T, float(&d)[num_sums], const uint32_t(&a)[4], uint64_t b) {              \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #elements "." #elements              \
                 " {" LLM_DIST_SUMS_##num_sums "}, {" a0_at ", " a1_at ", " a2_at ", " a3_at "}, " b_at \
                                               ", 1, 1, 1, 1;\n"                                        \
                 : LLM_DIST_D_##num_sums(0)                                                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                 \
  }
#define LLM_DIST_MULTIPLY_ALL_TILES(T, elements)             \
  LLM_DIST_MULTIPLY_TILES(T, elements, 8, 4, "%4", "%5")     \
  LLM_DIST_MULTIPLY_TILES(T, elements, 16, 8, "%8", "%9")    \
  LLM_DIST_MULTIPLY_TILES(T, elements, 32, 16, "%16", "%17") \
  LLM_DIST_MULTIPLY_TILES(T, elements, 64, 32, "%32", "%33") \
  LLM_DIST_MULTIPLY_TILES(T, elements, 96, 48, "%48", "%49") \
  LLM_DIST_MULTIPLY_TILES(T, elements, 128, 64, "%64", "%65")

LLM_DIST_MULTIPLY_ALL_TILES(__nv_bfloat16, bf16)
LLM_DIST_MULTIPLY_ALL_TILES(__half, f16)

// Of f8_e4m3: multiply_codes<kAdd>(d, a, b): D [64 × N] (+)= A · Bᵀ, A [64 × 32], B [N × 32] in shared
// memory.
#define LLM_DIST_MULTIPLY_CODES(n, num_sums, a_at, b_at, add_at)                                       \
  template <bool kAdd>                                                                                 \
  __device__ inline void multiply_codes(float(&d)[num_sums], uint64_t a, uint64_t b) {                 \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" LLM_DIST_SUMS_##num_sums \
                 "}, " a_at ", " b_at ", " add_at ", 1, 1;\n"                                          \
                 : LLM_DIST_D_##num_sums(0)                                                            \
                 : "l"(a), "l"(b), "n"(kAdd ? 1 : 0));                                                 \
  }
LLM_DIST_MULTIPLY_CODES(16, 8, "%8", "%9", "%10")
LLM_DIST_MULTIPLY_CODES(24, 12, "%12", "%13", "%14")
LLM_DIST_MULTIPLY_CODES(32, 16, "%16", "%17", "%18")
LLM_DIST_MULTIPLY_CODES(48, 24, "%24", "%25", "%26")
LLM_DIST_MULTIPLY_CODES(64, 32, "%32", "%33", "%34")
LLM_DIST_MULTIPLY_CODES(96, 48, "%48", "%49", "%50")
LLM_DIST_MULTIPLY_CODES(128, 64, "%64", "%65", "%66")

// The products of attention. multiply_128_tiles<kAdd>(T, d, a, b): D [64 × 128] (+)= A · Bᵀ with A and B in
// shared memory; multiply_columns(T, d, a, b): D [64 × N] += A · B with A's registers and B's
// swizzled_columns().
#define LLM_DIST_MULTIPLY_128_TILES(T, elements)                                        \
  template <bool kAdd>                                                                  \
  __device__ inline void multiply_128_tiles(T, float(&d)[64], uint64_t a, uint64_t b) { \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." #elements "." #elements \
                 " {" LLM_DIST_SUMS_64 "}, %64, %65, %66, 1, 1, 0, 0;\n"                \
                 : LLM_DIST_D_64(0)                                                     \
                 : "l"(a), "l"(b), "n"(kAdd ? 1 : 0));                                  \
  }
#define LLM_DIST_MULTIPLY_ATTENTION(T, elements)                                                   \
  LLM_DIST_MULTIPLY_128_TILES(T, elements)                                                         \
  LLM_DIST_MULTIPLY_ROWS(multiply_columns, T, elements, 64, 32, "%32", "%33", "%34", "%35", "%36") \
  LLM_DIST_MULTIPLY_ROWS(multiply_columns, T, elements, 128, 64, "%64", "%65", "%66", "%67", "%68")

LLM_DIST_MULTIPLY_ATTENTION(__nv_bfloat16, bf16)
LLM_DIST_MULTIPLY_ATTENTION(__half, f16)

// The widest products. multiply_wide_tiles(T, d, a, b, add): D [64 × N] (+)= A · Bᵀ with A and B in shared
// memory; without `add` what the sums were is not looked at.
#define LLM_DIST_MULTIPLY_WIDE_TILES(T, elements, n, num_sums, a_at, b_at, add_at)                       \
  __device__ inline void multiply_wide_tiles(T, float(&d)[num_sums], uint64_t a, uint64_t b, bool add) { \
    asm volatile(                                                                                        \
        "{\n"                                                                                            \
        ".reg .pred add;\n"                                                                              \
        "setp.ne.b32 add, " add_at                                                                       \
        ", 0;\n"                                                                                         \
        "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #elements "." #elements                        \
        " {" LLM_DIST_SUMS_##num_sums "}, " a_at ", " b_at                                               \
                                      ", add, 1, 1, 0, 0;\n"                                             \
                                      "}\n"                                                              \
        : LLM_DIST_D_##num_sums(0)                                                                       \
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));                                                   \
  }

LLM_DIST_MULTIPLY_WIDE_TILES(__nv_bfloat16, bf16, 192, 96, "%96", "%97", "%98")
LLM_DIST_MULTIPLY_WIDE_TILES(__half, f16, 192, 96, "%96", "%97", "%98")
LLM_DIST_MULTIPLY_WIDE_TILES(__nv_bfloat16, bf16, 256, 128, "%128", "%129", "%130")
LLM_DIST_MULTIPLY_WIDE_TILES(__half, f16, 256, 128, "%128", "%129", "%130")

// As products of fewer columns are asked for.
template <typename T, int kSums>
  requires(kSums >= 96)
__device__ inline void multiply_tiles(T, float (&d)[kSums], uint64_t a, uint64_t b) {
  multiply_wide_tiles(T(), d, a, b, true);
}

#undef LLM_DIST_MULTIPLY_WIDE_TILES
#undef LLM_DIST_MULTIPLY_ATTENTION
#undef LLM_DIST_MULTIPLY_128_TILES
#undef LLM_DIST_MULTIPLY_CODES
#undef LLM_DIST_MULTIPLY_ALL_TILES
#undef LLM_DIST_MULTIPLY_TILES
#undef LLM_DIST_MULTIPLY_ROWS

}  // namespace llm_dist::kernels
