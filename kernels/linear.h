// Linear: y = x · Wᵀ (+ bias), dense and block-quantized weights, alone, with a gated activation behind it,
// and with rows that go to several places.
#pragma once

#include <array>

#include "src/base/tensor.h"
#include "src/base/weight.h"
#include "src/device/peer_terms.h"

namespace llm_dist::kernels {

// Products hand rows of x among ranks where each has a multiple of so many (OpTable::hands_rows).
inline constexpr int64_t kHandedRows = 512;

// Rows that a product reads may be codes of 8 bits, kF8E4M3, whose scales stand in a tensor of their own, in
// f32: [1, num_tokens], one for each row, where OpTable::takes_codes says yes; or between two products
// [columns / kCodeGroup, num_tokens], of each row one for so many neighbouring columns, where
// OpTable::gives_codes does.
inline constexpr int64_t kCodeGroup = 128;

struct LinearParams {
  Tensor x;           // [num_tokens, k] activations, contiguous rows; or their codes
  Weight weight;      // [n, k], as prepare_weight left it
  Tensor bias;        // [n] in x's dtype, or empty
  Tensor out;         // [num_tokens, n], x's dtype or f32; of codes, the activations' 16 bits
  Tensor x_scales{};  // of codes, else empty
};

// The same in shares: outs[i] gets the i-th of num_outs runs of y's rows, of one length. They may be in other
// devices' memory that this one writes to.
struct LinearSharesParams {
  static constexpr int kMostOuts = 8;

  Tensor x;
  Weight weight;
  Tensor bias;
  std::array<Tensor, kMostOuts> outs;  // [num_tokens / num_outs, n]
  int num_outs = 0;
  int first = 0;      // the run to begin with; the others follow it round
  Tensor x_scales{};  // of codes, else empty

  // Where the outs stand one behind the other: all of y, otherwise empty.
  Tensor whole() const {
    Tensor all = outs[0];
    const int64_t run_bytes = all.dim(0) * all.stride(0) * dtype_bytes(all.dtype);
    for (int i = 1; i < num_outs; ++i) {
      const Tensor& out = outs[static_cast<size_t>(i)];
      const bool follows = out.data == static_cast<std::byte*>(all.data) + i * run_bytes &&
                           out.stride(0) == all.stride(0) && out.dtype == all.dtype;
      if (!follows) return {};
    }
    all.shape[0] *= num_outs;
    return all;
  }
  // The i-th run to be computed, alone.
  LinearParams run(int i) const {
    const int out = (first + i) % num_outs;
    const int64_t rows = x.dim(0) / num_outs;
    return {.x = x.rows(out * rows, rows),
            .weight = weight,
            .bias = bias,
            .out = outs[static_cast<size_t>(out)],
            .x_scales = x_scales ? x_scales.narrow(1, out * rows, rows) : Tensor{}};
  }
};

// The same where out is this rank's term of a sum over ranks. Where it is sent, it stands with all of them
// (this one, too), and out is as it was.
struct LinearTermsParams {
  LinearParams product;     // out in x's dtype, of 16 bits
  device::PeerTerms terms;  // of out's rows
};

// out = silu(gate) · up with [gate, up] = x · Wᵀ (+ bias): the merged gate-up projection and its activation
// (Shazeer 2020, SwiGLU).
struct LinearSiluAndMulParams {
  Tensor x;           // [num_tokens, k] activations, contiguous rows; or their codes
  Weight weight;      // [2n, k]: the gate's rows, then up's
  Tensor bias;        // [2n] in the activations' dtype, or empty
  Tensor gate_up;     // [num_tokens, 2n], theirs: memory for the products; what is left there is unspecified
  Tensor out;         // [num_tokens, n], theirs; or codes
  Tensor x_scales{};  // of codes, else empty: [1, num_tokens]
  Tensor out_scales{};  // likewise: [n / kCodeGroup, num_tokens]
};

}  // namespace llm_dist::kernels
