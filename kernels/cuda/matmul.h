// Matmul: y = x · Wᵀ (+ bias) by cuBLASLt, which is asked once a shape which of its kernels is best.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <memory>

#include "src/base/status.h"
#include "src/base/tensor.h"
#include "src/device/cuda/cuda_stream.h"

namespace llm_dist::kernels {

struct MatmulShape {
  int64_t m = 0;  // rows of x and y
  int64_t n = 0;  // rows of W
  int64_t k = 0;
  int64_t x_stride = 0;  // in elements
  int64_t y_stride = 0;
  DType in = DType::kBF16;   // of x, W and bias
  DType out = DType::kBF16;  // of y
  bool has_bias = false;
  int alignment = 16;  // bytes that every operand's address is a multiple of

  auto operator<=>(const MatmulShape&) const = default;
};

struct MatmulOperands {
  const void* x = nullptr;
  const void* w = nullptr;
  const void* bias = nullptr;
  void* y = nullptr;
};

class Matmul {
 public:
  // `workspace`: device memory that outlives this.
  static Result<std::unique_ptr<Matmul>> make(void* workspace, int64_t workspace_bytes);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  // Issues the product; an error fails the stream.
  void run(const MatmulShape& shape, const MatmulOperands& operands, device::CudaStream& stream);

 private:
  struct Plan;
  Matmul(cublasLtHandle_t handle, void* workspace, int64_t workspace_bytes);
  Result<const Plan*> plan_for(const MatmulShape& shape);

  cublasLtHandle_t handle_;
  void* workspace_;
  int64_t workspace_bytes_;
  std::map<MatmulShape, std::unique_ptr<Plan>> plans_;
};

}  // namespace llm_dist::kernels
