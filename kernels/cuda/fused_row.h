// FusedRow: ops of a step with a single row around a product. The addition and norm in front of it and the
// rotation behind it become part of its kernel (fused_row.cu): memory has little to do between two kernels.
// So does a sum over ranks in front of the addition: the product that makes this rank's term sends it to all
// ranks, and the one behind takes what all have sent. Nothing is left of the collective by itself.
//
// An op that may be the first of such a kernel is put off (CudaStream::put_off) until one comes that does not
// join it.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/hopper_device.h"
#include "kernels/cuda/matmul_shape.h"
#include "kernels/cuda/row_norm.h"
#include "src/device/cuda/cuda_stream.h"

namespace llm_dist::kernels {

// Of one token (kernels/rope_append.h); of the caches, k_cache and v_cache are what it appends to.
struct RowRotation {
  DType dtype = DType::kBF16;
  DType cache_dtype = DType::kBF16;
  void* qkv = nullptr;
  const int32_t* position = nullptr;
  const int32_t* slot = nullptr;
  const float* cos_sin = nullptr;
  int64_t cos_sin_stride = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int block_size = 0;
  int64_t block_stride = 0;  // of the caches, in elements
  int64_t head_stride = 0;
  void* k_cache = nullptr;
  void* v_cache = nullptr;

  int64_t columns() const { return (num_heads + int64_t{2} * num_kv_heads) * head_dim; }
};

// One kernel's work: the product and what is there of the other two.
struct FusedRowOps {
  RowNorm norm;  // width 0: none
  MatmulShape shape;
  MatmulOperands operands;
  RowRotation rotation;  // head_dim 0: none

  bool has_norm() const { return norm.width > 0; }
  bool has_product() const { return shape.m > 0; }
  bool has_rotation() const { return rotation.head_dim > 0; }
};

class FusedRow final : public device::PutOffWork {
 public:
  // Of device memory, zero at first.
  static constexpr int64_t kMemoryBytes = 256;
  // `memory` outlives this.
  FusedRow(std::byte* memory, const HopperDevice& device, bool wanted);
  ~FusedRow() override;
  FusedRow(const FusedRow&) = delete;
  FusedRow& operator=(const FusedRow&) = delete;

  // Puts the op off, alone or with what was before, and returns true; or has issued nothing and returns
  // false.
  bool put_off(const RowNorm& norm, device::CudaStream& stream);
  bool put_off(const MatmulShape& shape, const MatmulOperands& operands, device::CudaStream& stream);
  bool put_off(const RowRotation& rotation, device::CudaStream& stream);
  // Whether put_off() takes a product of this shape, and would send its y.
  bool sends(const MatmulShape& shape) const { return takes(shape) && !shape.gated && shape.out == shape.in; }

  void issue(device::CudaStream& stream) override;
  void drop() override;

 private:
  bool takes(const MatmulShape& shape) const;
  bool joins(const MatmulShape& shape, const MatmulOperands& operands) const;
  bool joins(const RowRotation& rotation) const;
  // What was put off before goes out; false: this stream takes nothing any more.
  bool begin(device::CudaStream& stream);

  uint32_t* readers_;
  int processors_;
  bool wanted_;
  FusedRowOps ops_;
  device::CudaStream* stream_ = nullptr;  // whose work they are
};

}  // namespace llm_dist::kernels
