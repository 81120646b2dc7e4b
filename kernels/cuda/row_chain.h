// RowChain: what stands between two attentions of a step with a single row, as one kernel. Products of one
// row take as long as their weights take to be read, and at the border of two kernels memory has little to
// do. Here a block on every processor asks for the weights of the next product while it ends the one before,
// waits for the other blocks and norms: a persistent kernel, as in Spector et al. 2025, "Look Ma, No
// Bubbles!". Beside kernels of other streams that wait for something, its blocks might never all run.
//
// An op that can be a step of a chain is put off (CudaStream::put_off) until one comes that cannot. Products
// without a norm among them are issued one by one, which is faster.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <vector>

#include "kernels/cuda/hopper_device.h"
#include "kernels/cuda/matmul_shape.h"
#include "kernels/cuda/row_norm.h"
#include "src/device/cuda/cuda_stream.h"

namespace llm_dist::kernels {

class RowChain final : public device::PutOffWork {
 public:
  static constexpr int kMostSteps = 8;

  // Of device memory, zero at first.
  static constexpr int64_t kMemoryBytes = (128 << 10) + 256;
  // `memory` outlives this. Where a device already has a chain in this process, it puts nothing off: two at
  // once would each hold processors that the other waits for.
  RowChain(std::byte* memory, const HopperDevice& device, bool wanted);
  ~RowChain() override;
  RowChain(const RowChain&) = delete;
  RowChain& operator=(const RowChain&) = delete;

  // Puts the op off and returns true, or has issued nothing and returns false.
  bool put_off(const MatmulShape& shape, const MatmulOperands& operands, device::CudaStream& stream);
  bool put_off(const RowNorm& norm, device::CudaStream& stream);

  void issue(device::CudaStream& stream) override;
  void drop() override;

 private:
  struct Step {
    bool is_norm = false;
    MatmulShape shape;
    MatmulOperands operands;
    RowNorm norm;
  };
  struct Rest;
  Rest rest() const;
  bool sends_last() const;
  bool takes(const MatmulShape& shape) const;
  bool joins(const MatmulShape& shape, const MatmulOperands& operands) const;
  bool joins(const RowNorm& norm) const;
  cudaError_t launch(cudaStream_t stream) const;

  std::byte* memory_;
  int processors_;
  std::atomic<bool>* claim_ = nullptr;  // of the device; null: nothing is put off
  std::vector<Step> steps_;
  device::CudaStream* stream_ = nullptr;  // whose work they are
};

}  // namespace llm_dist::kernels
