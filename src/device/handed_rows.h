// HandedRows: rows of x of which each rank of a group has a share, and which the product that reads them all
// hands to the other ranks beside its work (kernels/linear.h). Plain addresses, as PeerTerms.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/device/peer_terms.h"

namespace llm_dist::device {

// Rows travel in so many runs of columns, the first columns of all rows first, so that products begin with
// those while the others are on their way. The first run is at the ranks before the product begins.
inline constexpr int kHandedRuns = 4;

// Of a row of so many bytes: of each run but the last ones, which have what is left. A multiple of what
// products read at a time.
constexpr int64_t handed_run_bytes(int64_t row_bytes) {
  constexpr int64_t kStep = 128;
  const int64_t steps = (row_bytes + kStep - 1) / kStep;
  return (steps + kHandedRuns - 1) / kHandedRuns * kStep;
}

struct HandedRows {
  static constexpr int kMostRanks = PeerTerms::kMostRanks;

  // [ranks][share_bytes] in the memory of every rank, by rank: all rows. In this rank's its own are there,
  // and the first run of the others' columns. Where rows are codes, the scales of all stand behind them.
  std::byte* rows[kMostRanks] = {};
  // [ranks] likewise: by the rank whose rows they are, runs that have come, of all calls together.
  uint64_t* come[kMostRanks] = {};
  // In this rank's memory: calls so far, this one among them; and [kHandedRuns] warps that have handed their
  // part of a run of this one, 0 between calls.
  const uint64_t* calls = nullptr;
  uint32_t* warps_done = nullptr;
  int64_t share_bytes = 0;  // whole rows
  int64_t row_bytes = 0;    // a multiple of 16
  AbortWords aborted;
  int rank = 0;
  int size = 0;  // 0: all rows are there
};

}  // namespace llm_dist::device
