// Tiles in shared memory: rows of 16-byte pieces that arrive asynchronously and leave as the fragments of
// mma.cuh. The pieces of a row are permuted by its number, so that the eight rows which one access touches
// lie in different banks.
#pragma once

#include <cstdint>

namespace llm_dist::kernels {

// Of a tile with kPieces (a multiple of eight) pieces a row: where a piece stands.
template <int kPieces>
__device__ inline int tile_index(int row, int piece) {
  return row * kPieces + (piece ^ (row % 8));
}

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes at a shared address.
__device__ inline float4 load_shared(uint32_t from) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(from)
               : "memory");
  return value;
}
__device__ inline void store_shared(uint32_t to, float4 value) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "f"(value.x),
               "f"(value.y),
               "f"(value.z),
               "f"(value.w)
               : "memory");
}

// 16 bytes from global to shared memory, zeros where `there` is false; `from` must be readable all the same.
__device__ inline void copy_async(uint4* to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n"
               :
               : "r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}
// The same with how long L2 should keep them (device/tma.cuh). `to`: a shared address.
__device__ inline void copy_async(uint32_t to, const void* from, bool there, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;\n" ::"r"(to),
               "l"(from),
               "r"(there ? 16 : 0),
               "l"(policy)
               : "memory");
}
// What this thread has copied since the last call is a group.
__device__ inline void end_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Returns when at most kLeft of this thread's groups are on their way, the youngest.
template <int kLeft>
__device__ inline void await_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kLeft) : "memory");
}
// This thread's copies have arrived; others' once a barrier of the block is passed too.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }

// Four 8 × 8 matrices of 16-bit elements; lanes 8 i to 8 i + 7 name the rows of the i-th. A row lies in four
// lanes, two elements in each.
__device__ inline void load_matrices(uint32_t (&to)[4], const uint4* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row)));
}
// The same, transposed: a column lies in four lanes.
__device__ inline void load_matrices_transposed(uint32_t (&to)[4], const uint4* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row)));
}
// The way back: the rows that the lanes name get what load_matrices() would read from them.
__device__ inline void store_matrices(uint4* row, const uint32_t (&from)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(shared_address(row)),
      "r"(from[0]),
      "r"(from[1]),
      "r"(from[2]),
      "r"(from[3])
      : "memory");
}

// The same, transposed, to a shared address.
__device__ inline void store_matrices_transposed(uint32_t row, const uint32_t (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(row),
               "r"(from[0]),
               "r"(from[1]),
               "r"(from[2]),
               "r"(from[3])
               : "memory");
}

}  // namespace llm_dist::kernels
