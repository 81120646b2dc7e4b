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
#include "kernels/cuda/rotation.h"
#include "kernels/cuda/row_norm.h"
#include "src/device/cuda/cuda_stream.h"

namespace llm_dist::kernels {

// One kernel's work: the product and what is there of the other two.
struct FusedRowOps {
  RowNorm norm;  // width 0: none
  MatmulShape shape;
  MatmulOperands operands;
  Rotation rotation;  // head_dim 0: none

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
  bool put_off(const Rotation& rotation, device::CudaStream& stream);
  // Whether put_off() takes a product of this shape, and would send its y.
  bool sends(const MatmulShape& shape) const { return takes(shape) && !shape.gated && shape.out == shape.in; }

  void issue(device::CudaStream& stream) override;
  void drop() override;

 private:
  bool takes(const MatmulShape& shape) const;
  bool joins(const MatmulShape& shape, const MatmulOperands& operands) const;
  bool joins(const Rotation& rotation) const;
  // What was put off before goes out; false: this stream takes nothing any more.
  bool begin(device::CudaStream& stream);

  uint32_t* readers_;
  int processors_;
  bool wanted_;
  FusedRowOps ops_;
  device::CudaStream* stream_ = nullptr;  // whose work they are
};

}  // namespace llm_dist::kernels
