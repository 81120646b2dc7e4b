// The all-reduce over peer memory that adds its sum to the residual stream and norms that
// (comm/norm_reducer.h).
#pragma once

#include "comm/p2p/all_reduce.h"
#include "src/device/peer_terms.h"

namespace llm_dist::comm {

// Rows of `width` elements, one behind the other, aligned to units.
struct NormRows {
  const void* x = nullptr;
  void* residual = nullptr;
  const void* weight = nullptr;
  void* out = nullptr;  // may be x
  float epsilon = 0;
  int64_t rows = 0;
  int width = 0;
  bool sent = false;  // by the kernel in front: x is not read
};

// Whether the kernel is made for it, and the memory has room.
constexpr bool sums_into_norm(int64_t rows, int64_t width, DType dtype) {
  const bool type = dtype == DType::kF16 || dtype == DType::kBF16;
  const int64_t row_bytes = width * 2;
  return type && rows > 0 && rows <= kNormRows && width > 0 && row_bytes % kUnitBytes == 0 &&
         row_bytes <= kNormRowUnits * kUnitBytes;
}

// Every rank makes the same calls in the same order with the all-reduces, on one stream at a time; all go in
// as many trips. Returns the launch's error.
cudaError_t sum_into_norm(
    const PeerView& peers, DType dtype, const NormRows& rows, bool two_trips, cudaStream_t stream);

// Where a call of rows of `width` has the ranks' terms, which may be sent in front of it.
device::PeerTerms terms_of_rows(const PeerView& peers, int64_t width, bool two_trips);

// See load_all_reduce_kernels.
cudaError_t load_norm_sum_kernels(int size);

}  // namespace llm_dist::comm
