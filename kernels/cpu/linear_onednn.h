// DenseMatmul: oneDNN's matmul, its engine, and the primitives made so far.
#pragma once

#include <cstddef>
#include <memory>

#include "src/base/dtype.h"
#include "src/base/status.h"

namespace llm_dist::kernels {

// out [m, n] = x [m, k] · Wᵀ + bias; w [n, k] contiguous in x's dtype, bias [n] in x's dtype or null.
struct DenseMatmulCall {
  DType dtype = DType::kF32;  // of x, w and bias
  DType out_dtype = DType::kF32;
  int64_t m = 0, n = 0, k = 0;
  const void* x = nullptr;
  int64_t x_stride = 0;  // elements a row
  const void* w = nullptr;
  const void* bias = nullptr;
  void* out = nullptr;
  int64_t out_stride = 0;
};

class DenseMatmul {
 public:
  explicit DenseMatmul(int threads);
  ~DenseMatmul();

  // Runs on the calling thread and its team. Call it from one thread. False, and nothing is done, where
  // oneDNN has no kernel for the call on this CPU, which is asked once for each shape and remembered: its
  // reference loops, all it has for f16 with a bias, take a thousand times as long as our own kernels.
  Result<bool> run(const DenseMatmulCall& call);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace llm_dist::kernels
