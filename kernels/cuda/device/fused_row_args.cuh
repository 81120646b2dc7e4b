// What a kernel for a single row (fused_row.cu) is told, and how its blocks share the work.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/fused_row.h"
#include "kernels/cuda/launch.h"

namespace llm_dist::kernels::fused_row {

inline constexpr int kWarps = 16;
inline constexpr int kThreads = kWarps * kWarpSize;
inline constexpr int kLoadBytes = 16;                        // that a thread copies at a time
inline constexpr int kStepBytes = kWarpSize * kLoadBytes;    // of a row, that a warp multiplies at a time
inline constexpr int kGroup = 2;                             // steps that are waited for together
inline constexpr int kGroupBytes = 2 * kGroup * kStepBytes;  // of a pair of rows
inline constexpr int kRing = 4;                              // groups of a warp on their way
// Of them, those asked for before x is: x comes behind all that a processor has asked for.
inline constexpr int kRingBeforeX = 2;
inline constexpr int kRingBytes = kWarps * kRing * kGroupBytes;

using F8 = __nv_fp8_e4m3;

// What W and x, of T at first, are multiplied as.
template <typename T, typename W>
struct Factors {
  static constexpr bool kWidens = sizeof(W) == 1;
  using X = std::conditional_t<kWidens, __half, T>;
  static constexpr bool kLifts = !std::is_same_v<X, T>;
  static constexpr int kLoad = kLoadBytes / sizeof(W);  // elements
  static constexpr int kStep = kWarpSize * kLoad;
  static constexpr int kVecs = kLoad / kVecWidth;  // of x, that belong to a load of W
};
template <typename W>
constexpr int kGroupElements = kGroup * kStepBytes / sizeof(W);

// What a pair of rows of W is: neighbours; one of the gate and the one of up that it lets through; or the two
// elements of a head that are rotated together.
enum class Kind : uint8_t { kPlain, kGated, kRotated };

struct FusedRowArgs {
  int rows;         // of W
  int pairs;        // of them
  int half;         // of a rotated head
  int turn;         // from a warp's pair to its next one
  int turn_heads;   // as halves of heads, where they are rotated
  int turn_within;  // and what is left
  int k;            // elements of a row
  int groups;       // of a row
  bool floats;      // y
  const void* w;
  const float* w_scales;  // of f8_e4m3
  const void* bias;
  const void* x;
  void* y;
  device::PeerTerms terms;  // where y goes in the place of `y`, if anywhere
  RowNorm norm;
  uint32_t* readers;
  Rotation rotation;
};

__device__ inline bool has_norm(const FusedRowArgs& args) { return args.norm.width > 0; }
__device__ inline bool has_terms(const FusedRowArgs& args) { return args.norm.terms.size > 0; }

}  // namespace llm_dist::kernels::fused_row
