// The norm of sums over peer memory where each rank has a share of the residual stream
// (comm/norm_reducer.h).
#pragma once

#include "comm/p2p/all_reduce.h"

namespace llm_dist::comm {

// This rank's share of the rows; the others lie before and behind it, in rank order. Normed rows go to where
// every rank's layout wants them, unless they are kept.
struct ShareRows {
  void* residual = nullptr;      // [rows, width]
  const void* weight = nullptr;  // [width]; null: nothing is normed
  float epsilon = 0;
  int rows = 0;
  int width = 0;  // whole units
  // All ranks' terms of these rows stand here, one rank's behind the other's. Otherwise each rank has its
  // own, one share's behind the other's.
  bool handed = false;
  bool kept = false;  // normed rows go to this rank's memory alone (comm/norm_reducer.h)
  // Normed rows are codes, with a scale each behind all ranks' rows: only of rows that a block has room for,
  // of 8192 elements at most.
  bool codes = false;
};

// Whether the kernel is made for it: `rows` of all ranks together.
constexpr bool norms_shares(int64_t rows, int64_t width, DType dtype, int size) {
  const bool type = dtype == DType::kF16 || dtype == DType::kBF16;
  return type && rows > 0 && rows % size == 0 && width > 0 && width * 2 % kUnitBytes == 0;
}

// Every rank makes the same calls in the same order with the all-reduces, on one stream at a time. Returns
// the launch's error.
cudaError_t norm_shares(const PeerView& peers, DType dtype, const ShareRows& rows, cudaStream_t stream);

// See load_all_reduce_kernels.
cudaError_t load_shared_norm_kernels(int size);

}  // namespace llm_dist::comm
