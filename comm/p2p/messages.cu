// Messages from one rank to another, through a ring of slots in the receiver's memory. A block moves a piece
// of a message at a time. Two ways: a small message as packets, which need no fence; otherwise units, then
// a flag. Both are steps of one protocol, and may follow each other in any order.
//
// Blocks of one number on the two ranks are on their own, as in all_reduce.cu. Each counts the pieces that it
// has sent to a peer, or received from it; both count alike, since which blocks have which pieces follows
// from the bytes of a message. The counts are in the GPUs' memory, so a graph replays. Nothing is cleared: a
// slot has what an earlier piece has left, packets with its number.
//
// A sender may be ahead: piece n goes to slot n % kMessageSlots, in which piece n - kMessageSlots lay. So it
// waits until the receiver has said that it has read that one. The receiver says so when it begins with its
// next piece: what then orders its reads before its word is time that it has, waiting for data, and not at
// the end of a message, where the next kernel waits. So whoever has received n pieces and no more leaves room
// for kMessageSlots - 1 beyond them. No one waits in a circle: room for piece n is made by the receive of
// piece n - kMessageSlots + 1, which needs no later piece.
//
// A receiver's stream waits until the sender has begun (message_gates.h); then both kernels move a message at
// the same time. A sender that waits for room may wait for long all the same, beside kernels of a step where
// it has a stream of its own, and so may a receiver in a graph. So they have few blocks, no shared memory,
// and do not let the kernel behind start early, which would only take room.
#include <algorithm>

#include "comm/p2p/messages.h"
#include "comm/p2p/packets.cuh"
#include "comm/p2p/peer_launch.h"
#include "kernels/cuda/device/overlap.cuh"

namespace llm_dist::comm {
namespace {

// Of a thread, in a piece.
template <bool kAsPackets>
constexpr int kBatch = (kAsPackets ? kPacketPieceUnits : kStagedPieceUnits) / kMessageThreads;

// The block's word about `other` in the memory of `owner`.
__device__ uint64_t* word_of(const PeerView& peers, int owner, int64_t words, int other) {
  const int row = message_row(owner, other);
  return at<uint64_t>(peers, owner, words) + row * kMessageBlocks + blockIdx.x;
}

// Where the block's piece `number` from `sender` lies in the memory of `receiver`.
template <bool kAsPackets>
__device__ int64_t slot_of(const PeerView& peers, int receiver, int sender, uint64_t number) {
  const int64_t row = message_row(receiver, sender);
  const int64_t slot =
      (row * kMessageBlocks + blockIdx.x) * kMessageSlots + static_cast<int64_t>(number % kMessageSlots);
  return kAsPackets ? peers.layout.packet_pieces + slot * kPacketPieceUnits * kPacketsBytes
                    : peers.layout.staged_pieces + slot * kStagedPieceUnits * kUnitBytes;
}

// The first packet of the `index`-th unit in a piece, as packets_of has them.
__device__ Packet* packet_in(std::byte* piece, int index) {
  const int in_run = index % kPacketRun;
  return reinterpret_cast<Packet*>(piece + (index - in_run) * kPacketsBytes) + in_run;
}

// Waits until `word` is `least` at least, for the whole block: false when the group was aborted.
__device__ bool reaches(const PeerView& peers, const uint64_t* word, uint64_t least) {
  bool aborted = false;
  if (threadIdx.x == 0) {
    uint32_t polls = kernels::first_poll();
    while (!aborted && load_acquire(word) < least) aborted = gives_up(peers, polls);
  }
  return __syncthreads_or(aborted) == 0;
}

template <typename T, bool kAsPackets>
__global__ void __launch_bounds__(kMessageThreads)
    send_pieces(const __grid_constant__ PeerView peers, const FlatTensor tensor, int to, uint64_t message) {
  kernels::wait_for_previous();
  if (message > 0 && blockIdx.x == 0 && threadIdx.x == 0)
    raise_to(at<uint64_t>(peers, to, peers.layout.messages_begun) + message_row(to, peers.rank), message);
  constexpr int kUnits = kBatch<kAsPackets> * kMessageThreads;
  uint64_t* sent = word_of(peers, peers.rank, peers.layout.pieces_sent, to);
  const uint64_t* read = word_of(peers, peers.rank, peers.layout.pieces_read, to);
  uint64_t number = load_relaxed(sent);
  const int units = units_of<T>(tensor);
  for (int begin = blockIdx.x * kUnits; begin < units; begin += gridDim.x * kUnits) {
    ++number;
    uint4 raw[kBatch<kAsPackets>];
#pragma unroll
    for (int i = 0; i < kBatch<kAsPackets>; ++i) {
      const int unit = begin + i * kMessageThreads + threadIdx.x;
      if (unit < units) raw[i] = load_unit<T>(tensor, unit);
    }
    if (!reaches(peers, read, number > kMessageSlots ? number - kMessageSlots : 0)) break;
    std::byte* piece = at<std::byte>(peers, to, slot_of<kAsPackets>(peers, to, peers.rank, number));
#pragma unroll
    for (int i = 0; i < kBatch<kAsPackets>; ++i) {
      const int index = i * kMessageThreads + threadIdx.x;
      if (begin + index >= units) continue;
      if constexpr (kAsPackets) {
        store_packets(packet_in(piece, index), number, raw[i]);
      } else {
        reinterpret_cast<uint4*>(piece)[index] = raw[i];
      }
    }
    if constexpr (!kAsPackets) {
      __syncthreads();  // what the block's other threads have stored goes before the release, too
      if (threadIdx.x == 0) store_release(word_of(peers, to, peers.layout.pieces_staged, peers.rank), number);
    }
  }
  if (threadIdx.x == 0) *sent = number;  // read by all before the first wait's end
}

// The units of a piece of packets that fall to this thread, of `units` in it; false when the group was
// aborted.
template <int kMost>
__device__ bool receive_units(
    const PeerView& peers, std::byte* piece, int units, uint64_t number, uint4 (&raw)[kMost]) {
  uint32_t polls = kernels::first_poll();
  do {
    bool arrived = true;
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      const int index = i * kMessageThreads + threadIdx.x;
      if (index >= units) continue;
      load_packets(packet_in(piece, index), number, raw[i], arrived);
    }
    if (arrived) return true;
  } while (!gives_up(peers, polls));
  return false;
}

template <typename T, bool kAsPackets>
__global__ void __launch_bounds__(kMessageThreads)
    receive_pieces(const __grid_constant__ PeerView peers, const FlatTensor tensor, int from) {
  kernels::wait_for_previous();
  constexpr int kUnits = kBatch<kAsPackets> * kMessageThreads;
  uint64_t* received = word_of(peers, peers.rank, peers.layout.pieces_received, from);
  const uint64_t* staged = word_of(peers, peers.rank, peers.layout.pieces_staged, from);
  uint64_t* read = word_of(peers, from, peers.layout.pieces_read, peers.rank);
  uint64_t number = load_relaxed(received);
  const int units = units_of<T>(tensor);
  for (int begin = blockIdx.x * kUnits; begin < units; begin += gridDim.x * kUnits) {
    if (threadIdx.x == 0) store_release(read, number);  // of what the block, or a kernel before, has read
    ++number;
    std::byte* piece = at<std::byte>(peers, peers.rank, slot_of<kAsPackets>(peers, peers.rank, from, number));
    uint4 raw[kBatch<kAsPackets>];
    bool here = true;
    if constexpr (kAsPackets) {
      here = receive_units(peers, piece, units - begin, number, raw);
    } else {
      here = reaches(peers, staged, number);
#pragma unroll
      for (int i = 0; i < kBatch<kAsPackets>; ++i) {
        const int index = i * kMessageThreads + threadIdx.x;
        if (here && begin + index < units) raw[i] = load_staged(reinterpret_cast<uint4*>(piece) + index);
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch<kAsPackets>; ++i) {
      const int unit = begin + i * kMessageThreads + threadIdx.x;
      if (here && unit < units) store_unit<T>(tensor, unit, raw[i]);
    }
    if (__syncthreads_or(!here) != 0) break;
  }
  if (threadIdx.x == 0) *received = number;  // read by all before the last piece's end
}

using Sender = void (*)(PeerView, FlatTensor, int, uint64_t);
using Receiver = void (*)(PeerView, FlatTensor, int);

// A word that a message and its address are made of: the largest that there is a kernel for.
using Word = uint32_t;

Sender send_kernel(bool as_packets, bool of_words) {
  if (as_packets) return of_words ? send_pieces<Word, true> : send_pieces<uint8_t, true>;
  return of_words ? send_pieces<Word, false> : send_pieces<uint8_t, false>;
}

Receiver receive_kernel(bool as_packets, bool of_words) {
  if (as_packets) return of_words ? receive_pieces<Word, true> : receive_pieces<uint8_t, true>;
  return of_words ? receive_pieces<Word, false> : receive_pieces<uint8_t, false>;
}

// The same blocks on both ranks.
template <typename Kernel, typename... More>
cudaError_t launch(Kernel (*kernel_of)(bool, bool),
                   const PeerView& peers,
                   const Message& message,
                   cudaStream_t stream,
                   More... more) {
  CHECK(message.bytes > 0 && message.bytes <= kMostMessageBytes, "a message of {} bytes", message.bytes);
  CHECK(message.peer != peers.rank && message.peer >= 0 && message.peer < peers.size,
        "a message between rank {} and rank {}",
        peers.rank,
        message.peer);
  const auto address = reinterpret_cast<uintptr_t>(message.data);
  const bool of_words =
      address % sizeof(Word) == 0 && message.bytes % static_cast<int64_t>(sizeof(Word)) == 0;
  const int64_t element_bytes = of_words ? sizeof(Word) : 1;
  const FlatTensor tensor{.data = message.data,
                          .count = static_cast<int>(message.bytes / element_bytes),
                          .aligned = address % kUnitBytes == 0};
  const int units_of_piece = message.as_packets ? kPacketPieceUnits : kStagedPieceUnits;
  const int64_t pieces = (units_in(message.bytes) + units_of_piece - 1) / units_of_piece;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(pieces, kMessageBlocks));
  return launch_beside_peers(kernel_of(message.as_packets, of_words),
                             {.grid = dim3(blocks), .threads = kMessageThreads, .stream = stream},
                             peers,
                             tensor,
                             message.peer,
                             more...);
}

}  // namespace

cudaError_t send_message(const PeerView& peers, const Message& message, cudaStream_t stream) {
  return launch(send_kernel, peers, message, stream, message.number);
}

cudaError_t receive_message(const PeerView& peers, const Message& message, cudaStream_t stream) {
  return launch(receive_kernel, peers, message, stream);
}

cudaError_t load_message_kernels() {
  for (bool as_packets : {false, true}) {
    for (bool of_words : {false, true}) {
      for (const void* kernel : {reinterpret_cast<const void*>(send_kernel(as_packets, of_words)),
                                 reinterpret_cast<const void*>(receive_kernel(as_packets, of_words))}) {
        cudaFuncAttributes attributes{};
        cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
        if (error != cudaSuccess) return error;
      }
    }
  }
  return cudaSuccess;
}

}  // namespace llm_dist::comm
