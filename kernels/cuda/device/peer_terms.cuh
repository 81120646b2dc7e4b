// Terms of sums over ranks on their way between GPUs. A term lies in the memory of the GPU that takes it as
// it is, with nothing beside it: a word with all its bits set has not come yet. As two f16 or bf16 that would
// be two that are no numbers; who has just these sends two others. Who has taken a term sets all bits again,
// so that what the next one finds there has not come. That is half the bytes of packets with a number in each
// (comm/p2p/packets.cuh), and no number to agree on. TensorRT-LLM's all-reduces do so, and call it after
// Lamport.
//
// Accesses are relaxed ones at the scope of the system, where words are never torn; four of them in a vector
// are four words.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "src/device/peer_terms.h"

namespace llm_dist::kernels {

inline constexpr uint32_t kNotCome = 0xffffffffu;

// A wait looks at its peers this often between two looks at the host's word, which is far away: those of ten
// thousand threads at once can take 0.3 ms. All looks of a wait have to take much less time than the wait, or
// they make their rank late, the peers wait and look the longer, and so on, call after call. The 4096 warps
// of 256 rows, whose polls take some 1 µs, look as often as once in 16 µs.
inline constexpr uint32_t kPollsPerLook = 1 << 16;
// And this often between two at the word in its own memory, which whoever has looked leaves for the others
// and for the kernels that are still to come: each of these would otherwise wait for a look of its own.
inline constexpr uint32_t kPollsPerLookNearby = 1 << 11;
static_assert(kPollsPerLook % kPollsPerLookNearby == 0);

__device__ inline uint32_t load_relaxed(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

__device__ inline uint64_t load_relaxed(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

// A release makes what this thread has seen and written before it visible to whoever acquires its value.
__device__ inline void store_release(uint64_t* to, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

__device__ inline uint64_t load_acquire(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

// How many have called it before; releases what this thread has written, acquires what those have.
__device__ inline uint32_t count_done(uint32_t* done) {
  uint32_t before;
  asm volatile("atom.acq_rel.sys.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(done) : "memory");
  return before;
}

// Where a warp begins to count its polls: warps that wait together look one after the other.
__device__ inline uint32_t first_poll() {
  constexpr uint32_t kApart = 61;
  return (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * kApart % kPollsPerLook;
}

__device__ inline bool gives_up(const device::AbortWords& aborted, uint32_t& polls) {
  if (++polls % kPollsPerLookNearby != 0) return false;
  if (load_relaxed(aborted.seen) != 0) return true;
  if (polls % kPollsPerLook != 0 || load_relaxed(aborted.told) == 0) return false;
  asm volatile("st.relaxed.sys.global.u32 [%0], 1;" ::"l"(aborted.seen) : "memory");
  return true;
}

__device__ inline uint32_t as_term(uint32_t word) { return word == kNotCome ? 0x7fff7fffu : word; }

__device__ inline void store_term(uint32_t* to, uint32_t word) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(as_term(word)) : "memory");
}

__device__ inline void store_term(uint4* to, uint4 raw) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to),
               "r"(as_term(raw.x)),
               "r"(as_term(raw.y)),
               "r"(as_term(raw.z)),
               "r"(as_term(raw.w))
               : "memory");
}

__device__ inline uint4 load_term(const uint4* from) {
  uint4 raw;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
               : "l"(from)
               : "memory");
  return raw;
}

__device__ inline bool has_come(uint4 raw) { return max(max(raw.x, raw.y), max(raw.z, raw.w)) != kNotCome; }

// Of what has been taken.
__device__ inline void forget_term(uint4* at) { *at = make_uint4(kNotCome, kNotCome, kNotCome, kNotCome); }

// Where the term of `source` of the first row stands in the memory of `rank`, of the sum with this number.
__device__ inline std::byte* term_at(const device::PeerTerms& terms, int rank, int source, uint64_t number) {
  return terms.rows[rank] + static_cast<int64_t>(number % 2) * terms.slot_bytes + source * terms.source_bytes;
}

// Sends a word of this rank's term of row `row`, whose sum has this number, from column `column` on: two
// elements. This rank's own memory is one of the places. Who sends lets the next kernel start when it has
// waited itself, and not before: the next one relies on what stood in front of this one.
__device__ inline void send_term(
    const device::PeerTerms& terms, uint64_t number, int64_t row, int column, uint32_t word) {
  const int64_t offset = static_cast<int64_t>(number % 2) * terms.slot_bytes +
                         terms.rank * terms.source_bytes + row * terms.row_bytes + 2 * int64_t{column};
  auto send = [&](int rank) { store_term(reinterpret_cast<uint32_t*>(terms.rows[rank] + offset), word); };
  if (terms.part_columns > 0) return send(column / terms.part_columns);
  for (int distance = 1; distance <= terms.size; ++distance) {
    const int rank = terms.rank + distance;
    send(rank < terms.size ? rank : rank - terms.size);
  }
}

}  // namespace llm_dist::kernels
