// HandedRows: rows of x of which each rank of a group has a share, and which the product that reads them all
// hands to the other ranks beside its work (kernels/linear.h). Plain addresses, as PeerTerms.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/device/peer_terms.h"

namespace llm_dist::device {

struct HandedRows {
  static constexpr int kMostRanks = PeerTerms::kMostRanks;

  // [ranks][share_bytes] in the memory of every rank, by rank: all rows. In this rank's its own are there.
  // Where rows are codes, the scales of all stand behind them, and are there.
  std::byte* rows[kMostRanks] = {};
  // [ranks] likewise: by the rank whose rows they are, how many calls' have come.
  uint64_t* come[kMostRanks] = {};
  // In this rank's memory: calls so far, this one among them; and [ranks] warps that have handed their part
  // of this one to it, 0 between calls.
  const uint64_t* calls = nullptr;
  uint32_t* warps_done = nullptr;
  int64_t share_bytes = 0;  // whole rows; a multiple of 16
  int64_t row_bytes = 0;
  AbortWords aborted;
  int rank = 0;
  int size = 0;  // 0: all rows are there
};

}  // namespace llm_dist::device
