// RMSNorm (Zhang & Sennrich 2019, eq. 4), alone and fused with the residual addition before it.
#pragma once

#include "src/base/tensor.h"
#include "src/device/peer_terms.h"

namespace llm_dist::kernels {

// out[t] = x[t] / sqrt(mean(x[t]²) + epsilon) · weight, reduced in float. One dtype for all; out may be x.
struct RmsNormParams {
  Tensor x;       // [num_tokens, hidden]
  Tensor weight;  // [hidden]
  float epsilon = 1e-5f;
  Tensor out;  // [num_tokens, hidden]
};

// Of rows of up to so many elements norms may leave codes, kF8E4M3 with a scale for each row (linear.h), in
// the place of 16 bits: those of the rows that they would leave otherwise. Only for products that take them
// (OpTable::takes_codes).
inline constexpr int64_t kMostCodedHidden = 8192;

// residual ← residual + x (rounded to its dtype); out ← RMSNorm(residual). out may be x, codes may not.
struct AddRmsNormParams {
  Tensor x;         // [num_tokens, hidden]
  Tensor residual;  // [num_tokens, hidden], in and out
  Tensor weight;    // [hidden]
  float epsilon = 1e-5f;
  Tensor out;           // [num_tokens, hidden], x's dtype; or codes
  Tensor out_scales{};  // of codes, else empty: [1, num_tokens]
};

// The same of a single row that is a sum over ranks: x stands for this rank's term, which the product in
// front has sent (LinearTermsParams). Nothing is read there.
struct AddRmsNormOfTermsParams {
  AddRmsNormParams norm;
  device::PeerTerms terms;
};

// a ← a + b, one dtype.
struct AddParams {
  Tensor a;  // [num_tokens, hidden], in and out
  Tensor b;  // [num_tokens, hidden]
};

}  // namespace llm_dist::kernels
