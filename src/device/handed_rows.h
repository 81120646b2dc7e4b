// HandedRows: rows of x of which each rank of a group has a share, and which the product that reads them all
// hands to the other ranks beside its work (kernels/linear.h). Plain addresses, as PeerTerms.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/device/peer_terms.h"

namespace llm_dist::device {

struct HandedRows {
  static constexpr int kMostRanks = PeerTerms::kMostRanks;
  // Of columns, as products read them.
  static constexpr int64_t kStepBytes = 128;

  // [ranks][share_bytes] in the memory of every rank, by rank: all rows. In this rank's its own are there,
  // and of the others' the first columns. Where rows are codes, the scales of all stand behind them, and are
  // there.
  std::byte* rows[kMostRanks] = {};
  // [ranks] likewise: by the rank whose rows they are, 2 n - 1 when the first columns of its rows of call n
  // have come, and 2 n when all have.
  uint64_t* come[kMostRanks] = {};
  // In this rank's memory: calls so far, this one among them; and [ranks] warps that have handed their part of
  // this one to it, 0 between calls.
  const uint64_t* calls = nullptr;
  uint32_t* warps_done = nullptr;
  int64_t share_bytes = 0;  // whole rows
  int64_t row_bytes = 0;    // a multiple of 16
  int64_t ahead_bytes = 0;  // of a row, its first columns: a multiple of kStepBytes, less than a row
  AbortWords aborted;
  int rank = 0;
  int size = 0;  // 0: all rows are there
};

// Half a row.
constexpr int64_t handed_ahead_bytes(int64_t row_bytes) {
  return row_bytes / 2 / HandedRows::kStepBytes * HandedRows::kStepBytes;
}

}  // namespace llm_dist::device
