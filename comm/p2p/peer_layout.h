// Where things lie in the memory that a rank of a peer group gives its peers to write to. The same on all
// ranks. Sizes in bytes unless they are called units: 16 bytes of a tensor, what a thread moves at a time.
//
// A unit of a tensor always falls to the same block of a way's kernel, however many blocks a call has, and a
// block talks only to the blocks of its number on other ranks. So a block's part of each region is its own,
// each block counts its own calls, and the protocol need only be right for one block (all_reduce.cu). The
// same holds of a unit of a part that ranks exchange, by packets or in one shot (exchange.cu), and of a piece
// of a message (messages.cu). Exceptions are sums with a norm, of which each row is on its own (norm_sum.cu),
// and terms and normed rows of shared calls: shared_norm.cu says why they may be.
#pragma once

#include <algorithm>
#include <cstdint>

#include "comm/p2p/peer_group.h"

namespace llm_dist::comm {

inline constexpr int64_t kUnitBytes = 16;
inline constexpr int64_t kPacketsBytes = 32;  // of a unit: two packets of 8 bytes with an 8-byte number
inline constexpr int kPacketRun = 32;         // units whose first packets stand together, then their second
inline constexpr int kPacketThreads = 128;
inline constexpr int kPacketBlocks = 128;
inline constexpr int kStageThreads = 512;
inline constexpr int kStageBlocks = 64;
inline constexpr int kNormRows = 256;
inline constexpr int kNormBlocks = 128;     // of up to 1024 threads; those that find no room wait
inline constexpr int kNormRowUnits = 1024;  // at most: 8192 elements of 16 bits
inline constexpr int64_t kNormRowBytes = kNormRowUnits * kUnitBytes;
inline constexpr int kSharedThreads = 256;  // a warp for a row
inline constexpr int kSharedBlocks = 128;   // one a multiprocessor; where there are fewer, the rest wait

// Messages have few blocks: a kernel that waits for the peer does so beside those of a step. A piece is what
// a block moves at a time, 2 units a thread as packets and 8 otherwise. How many of each is a guess.
inline constexpr int kMessageThreads = 512;
inline constexpr int kMessageBlocks = 16;
inline constexpr int kMessageSlots = 8;  // of a block's pieces from one rank to another
inline constexpr int kPacketPieceUnits = 2 * kMessageThreads;
inline constexpr int kStagedPieceUnits = 8 * kMessageThreads;
inline constexpr int64_t kMostMessageBytes = 1 << 30;

// Where a rank keeps what is about `other`, among its peers.
constexpr int message_row(int rank, int other) { return other - (other > rank ? 1 : 0); }

// Offsets from the start of a rank's memory.
struct PeerLayout {
  int64_t packet_units = 0;    // of a rank's part of a slot
  int64_t one_shot_units = 0;  // likewise
  int64_t part_units = 0;      // of one of the parts that a two-shot call divides a tensor into

  int64_t abort_seen = 0;      // uint32_t: device::AbortWords::seen; this rank's own
  int64_t packet_calls = 0;    // uint64_t [kPacketBlocks]: calls made, by block; this rank's own
  int64_t one_shot_calls = 0;  // uint64_t [kStageBlocks]
  int64_t two_shot_calls = 0;  // uint64_t [kStageBlocks]
  int64_t norm_calls = 0;      // uint64_t [kNormRows]
  int64_t one_shot_flags = 0;  // uint64_t [kStageBlocks][kMaxPeerRanks]: calls that the peers have sent for
  int64_t scatter_flags = 0;   // likewise
  int64_t gather_flags = 0;    // likewise
  int64_t packets = 0;         // packets [2 slots][size][packet_units]
  int64_t one_shot = 0;        // units [2 slots][size][one_shot_units]
  int64_t scatter = 0;         // units [size][part_units]: the ranks' shares of this rank's part
  int64_t gather = 0;          // units [size][part_units]: the ranks' finished parts
  int64_t norm_terms = 0;      // units [2 slots][size][kNormRows][kNormRowUnits], where wanted; norm_sum.cu
  int64_t shared_calls = 0;    // uint64_t [kSharedBlocks]
  int64_t term_flags = 0;      // uint64_t [kSharedBlocks][kMaxPeerRanks]: calls whose terms the peers have
  int64_t normed_flags = 0;    // likewise: calls whose normed rows they have sent
  int64_t kept_calls = 0;      // uint64_t: calls whose normed rows were kept; this rank's own
  int64_t handing_done = 0;    // uint32_t [kMaxPeerRanks]: device::HandedRows::warps_done; this rank's own
  int64_t handed_flags = 0;    // uint64_t [kMaxPeerRanks]: device::HandedRows::come
  int64_t term = 0;    // units [units of shared_bytes]: of a shared call, see ShareRows (shared_norm.h)
  int64_t normed = 0;  // likewise: its out
  // Of messages, rows by message_row.
  int64_t pieces_sent = 0;      // uint64_t [size - 1][kMessageBlocks]: to each peer; this rank's own
  int64_t pieces_received = 0;  // likewise: from each peer; this rank's own
  int64_t pieces_staged = 0;    // likewise: that each peer has sent, as far as they are no packets
  int64_t pieces_read = 0;      // likewise: of this rank's, that each peer has read
  int64_t messages_begun = 0;   // uint64_t [size - 1]: of each peer to this rank; message_gates.h
  int64_t packet_pieces =
      0;  // packets [size - 1][kMessageBlocks][kMessageSlots][kPacketPieceUnits], where wanted
  int64_t staged_pieces =
      0;  // units [size - 1][kMessageBlocks][kMessageSlots][kStagedPieceUnits], where wanted
  int64_t bytes = 0;
};

constexpr int64_t units_in(int64_t bytes) { return (bytes + kUnitBytes - 1) / kUnitBytes; }
constexpr int64_t whole_runs(int64_t units) { return (units + kPacketRun - 1) / kPacketRun * kPacketRun; }

constexpr int64_t norm_terms_bytes(int size) { return 2 * size * kNormRows * kNormRowBytes; }

inline PeerLayout peer_layout(int size, const PeerLimits& limits) {
  // A mapped handle shows its peers whole pages of this size.
  constexpr int64_t kPageBytes = 2 << 20;
  constexpr int64_t kAlignment = 256;  // whole lines, and as libraries of products want their tensors
  PeerLayout at{.packet_units = whole_runs(units_in(limits.packets_bytes)),
                .one_shot_units = units_in(std::max(limits.one_shot_bytes, limits.parts_bytes / size)),
                .part_units = (units_in(limits.two_shot_bytes) + size - 1) / size};
  int64_t end = 0;
  auto place = [&end](int64_t bytes) {
    const int64_t begin = end;
    end += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  };
  constexpr int64_t kWord = sizeof(uint64_t);
  at.abort_seen = place(sizeof(uint32_t));
  at.packet_calls = place(kPacketBlocks * kWord);
  at.one_shot_calls = place(kStageBlocks * kWord);
  at.two_shot_calls = place(kStageBlocks * kWord);
  at.norm_calls = place(kNormRows * kWord);
  at.one_shot_flags = place(kStageBlocks * kMaxPeerRanks * kWord);
  at.scatter_flags = place(kStageBlocks * kMaxPeerRanks * kWord);
  at.gather_flags = place(kStageBlocks * kMaxPeerRanks * kWord);
  at.packets = place(2 * size * at.packet_units * kPacketsBytes);
  at.one_shot = place(2 * size * at.one_shot_units * kUnitBytes);
  at.scatter = place(size * at.part_units * kUnitBytes);
  at.gather = place(size * at.part_units * kUnitBytes);
  at.norm_terms = place(limits.norm_bytes > 0 ? norm_terms_bytes(size) : 0);
  at.shared_calls = place(kSharedBlocks * kWord);
  at.term_flags = place(kSharedBlocks * kMaxPeerRanks * kWord);
  at.normed_flags = place(kSharedBlocks * kMaxPeerRanks * kWord);
  at.kept_calls = place(kWord);
  at.handing_done = place(kMaxPeerRanks * sizeof(uint32_t));
  at.handed_flags = place(kMaxPeerRanks * kWord);
  at.term = place(units_in(limits.shared_bytes) * kUnitBytes);
  at.normed = place(units_in(limits.shared_bytes) * kUnitBytes);
  const int64_t message_blocks = (size - 1) * kMessageBlocks;
  for (int64_t* words : {&at.pieces_sent, &at.pieces_received, &at.pieces_staged, &at.pieces_read})
    *words = place(message_blocks * kWord);
  at.messages_begun = place((size - 1) * kWord);
  const int64_t slots = limits.message_bytes > 0 ? message_blocks * kMessageSlots : 0;
  if (limits.message_packets_bytes > 0) at.packet_pieces = place(slots * kPacketPieceUnits * kPacketsBytes);
  at.staged_pieces = place(slots * kStagedPieceUnits * kUnitBytes);
  at.bytes = (end + kPageBytes - 1) / kPageBytes * kPageBytes;
  return at;
}

}  // namespace llm_dist::comm
