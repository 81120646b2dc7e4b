// Accesses to memory that other GPUs read and write at the same time, in the terms of the PTX memory model at
// the scope of the system: relaxed ones are never torn and go past the first-level cache, a release makes
// what this thread has seen and written before it visible to whoever acquires its value.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/peer_terms.cuh"

namespace llm_dist::comm {

// Eight bytes of a tensor and the number of the call that sent them. Written and read in one piece: 16-byte
// accesses are single ones in the memory model since PTX 8.4, so a reader that sees the number has the data.
struct alignas(16) Packet {
  uint64_t data;
  uint64_t number;
};

__device__ inline void store_packet(Packet* to, uint64_t data, uint64_t number) {
  asm volatile(
      "{ .reg .b128 packet; mov.b128 packet, {%1, %2}; st.relaxed.sys.global.b128 [%0], packet; }" ::"l"(to),
      "l"(data),
      "l"(number)
      : "memory");
}

__device__ inline Packet load_packet(const Packet* from) {
  Packet packet;
  asm volatile("{ .reg .b128 packet; ld.relaxed.sys.global.b128 packet, [%2]; mov.b128 {%0, %1}, packet; }"
               : "=l"(packet.data), "=l"(packet.number)
               : "l"(from)
               : "memory");
  return packet;
}

// What a peer wrote before a value of its that this block has acquired. In order with the waits before it.
__device__ inline uint4 load_staged(const uint4* from) {
  uint4 raw;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
               : "l"(from)
               : "memory");
  return raw;
}

// The same out of a peer's memory. That the acquire orders it is the memory model's word. Being a relaxed one
// of system scope it is also taken from the peer's own cache each time: of memory that is not this GPU's, no
// cache on the way may answer, and no line is spent on what is read once.
__device__ inline uint4 load_from_peer(const uint4* from) { return kernels::load_term(from); }

// The word is `value` at least from then on. It orders nothing.
__device__ inline void raise_to(uint64_t* word, uint64_t value) {
  asm volatile("red.relaxed.sys.global.max.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

using kernels::load_acquire;
using kernels::load_relaxed;
using kernels::store_release;

}  // namespace llm_dist::comm
