// PeerTerms: where the ranks of a group leave each other their terms of rows that are sums over them, in
// memory of their GPUs that all of them write to (comm/p2p/norm_sum.cu). Plain addresses, so that kernels of
// products can send terms, too.
#pragma once

#include <cstddef>
#include <cstdint>

namespace llm_dist::device {

// Words that are not 0 where nobody is to wait any more.
struct AbortWords {
  const uint32_t* told = nullptr;  // in the host's memory
  uint32_t* seen = nullptr;        // in this rank's: once one of its threads has read the other
};

struct PeerTerms {
  static constexpr int kMostRanks = 8;

  // [2 slots][ranks][rows] in the memory of every rank, by rank: all ranks' terms of the rows, slots taken in
  // turn.
  std::byte* rows[kMostRanks] = {};
  int64_t row_bytes = 0;     // from a row to the next one
  int64_t source_bytes = 0;  // from one rank's rows to the next one's
  int64_t slot_bytes = 0;
  // By row, in this rank's memory: sums of such a row that it has ended.
  uint64_t* calls = nullptr;
  AbortWords aborted;
  // 0: everyone gets all of a term. Otherwise rank r gets what is in the r-th run of so many columns.
  int part_columns = 0;
  int rank = 0;
  int size = 0;  // 0: nothing is to be sent
};

}  // namespace llm_dist::device
