// Kernels over peer memory for calls in which a rank has a part for each rank: gathers, all-to-alls and
// reduce-scatters. Parts follow one another in rank order. Their size is the same on all ranks; addresses may
// be any, and others on every rank.
#pragma once

#include "comm/p2p/all_reduce.h"

namespace llm_dist::comm {

struct PartsToMove {
  const void* in = nullptr;   // a part for each rank, or one for all
  void* out = nullptr;        // a part from each rank
  int64_t bytes = 0;          // of a part
  bool same_for_all = false;  // then `in` may be this rank's part of `out`
};

struct PartsToSum {
  const void* in = nullptr;  // a part for each rank
  void* out = nullptr;       // one; may be this rank's part of `in`
  DType dtype = DType::kF32;
  int64_t count = 0;  // of a part's elements: f32, f16 or bf16
};

// `way`: packets or one shot. Every rank makes the same calls in the same order with the all-reduces, on one
// stream at a time; a part has no more bytes than the way's memory has room for. Sums are those of
// all_reduce_sum. Returns the launch's error.
cudaError_t move_parts(PeerWay way, const PeerView& peers, const PartsToMove& parts, cudaStream_t stream);
cudaError_t sum_parts(PeerWay way, const PeerView& peers, const PartsToSum& parts, cudaStream_t stream);

// See load_all_reduce_kernels.
cudaError_t load_exchange_kernels(int size);

}  // namespace llm_dist::comm
