// What RowChain (row_chain.cpp) and its kernel (row_chain.cu) share: sizes, what the kernel is told, and its
// launch.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_chain.h"

namespace llm_dist::kernels::chain {

inline constexpr int kPieceBytes = 4096;  // at most: what a warp takes at a time
inline constexpr int kPair = 2;           // pieces that are asked for at once
inline constexpr int kPlaces = 22;        // for pairs
inline constexpr int kPlacesBytes = kPlaces * kPair * kPieceBytes;
inline constexpr int kSharedBytes = 225 << 10;
inline constexpr int kPacketElements = 4;
inline constexpr int kLoad = kVecWidth;  // elements that a thread loads at a time
static_assert(kLoad == 2 * kPacketElements && kPlacesBytes % 128 == 0);
inline constexpr int64_t kMostSent = 16384;  // elements

struct ChainMemory;  // on the device, RowChain::kMemoryBytes at most

struct ChainStep {
  bool is_norm;
  // Of a product.
  bool gated;
  bool floats;  // y
  bool sends;   // y to the next step
  bool stores;  // y to memory
  int columns;  // of y
  int k;
  int piece;   // elements
  int pieces;  // of a row of W
  const void* w;
  const void* bias;
  const void* x;
  void* y;
  const void* weight;  // of a norm; y is where its out goes
  float epsilon;
};

// In shared memory stand the places, x, the residual stream, and a product's sums by piece.
struct ChainArgs {
  int count;    // of steps
  int x_bytes;  // of the longest
  int width;    // of the residual stream
  void* residual;
  ChainMemory* memory;
  ChainStep steps[RowChain::kMostSteps];
};

// Whether every processor has room for a block.
bool fits_processors();
// For steps of bf16 or f16; a block a processor. `shared_bytes`: kSharedBytes at most.
cudaError_t launch_row_chain(
    DType dtype, const ChainArgs& args, int processors, int shared_bytes, cudaStream_t stream);

}  // namespace llm_dist::kernels::chain
