// What cuBLASLt is told of a product, which kernels it offers for it, and a call of one of them.
#pragma once

#include <cublasLt.h>

#include <string_view>
#include <vector>

#include "kernels/cuda/matmul_shape.h"
#include "src/base/status.h"

namespace llm_dist::kernels {

Status blas_status(cublasStatus_t status, std::string_view what);

// cuBLASLt thinks in columns: yᵀ (n × m) = op(W) (n × k) · xᵀ (k × m), where W as it lies in memory is k × n.
class LibraryProduct {
 public:
  // Device memory of a call.
  struct Memory {
    void* workspace = nullptr;
    int64_t workspace_bytes = 0;
  };

  LibraryProduct() = default;
  ~LibraryProduct();
  LibraryProduct(const LibraryProduct&) = delete;
  LibraryProduct& operator=(const LibraryProduct&) = delete;

  // Once, before all else.
  Status describe(const MatmulShape& shape);
  // What is an argument of each call, though it travels in the description.
  Status point_to(const MatmulShape& shape, const MatmulOperands& operands, const float* x_scales);
  // What the library offers, `most` at most, best guess first.
  Result<std::vector<cublasLtMatmulAlgo_t>> offers(cublasLtHandle_t handle,
                                                   const MatmulShape& shape,
                                                   int64_t workspace_bytes,
                                                   int most) const;
  // Whether this library can run it here.
  bool takes(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm, int64_t workspace_bytes) const;
  // operands.x: as W's dtype wants it.
  Status multiply(cublasLtHandle_t handle,
                  const cublasLtMatmulAlgo_t& algorithm,
                  const MatmulOperands& operands,
                  const Memory& memory,
                  cudaStream_t stream) const;

 private:
  template <typename T>
  Status set(cublasLtMatmulDescAttributes_t attribute, T value) {
    return blas_status(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof value),
                       "cublasLtMatmulDescSetAttribute");
  }

  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr;
  cublasLtMatrixLayout_t x_ = nullptr;
  cublasLtMatrixLayout_t y_ = nullptr;
};

}  // namespace llm_dist::kernels
