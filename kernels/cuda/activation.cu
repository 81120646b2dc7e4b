// SiLU(gate) · up, elementwise over the merged projection's output.
#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/silu.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/silu_and_mul.h"

namespace llm_dist::kernels {
namespace {

template <typename T, int kVec>
__global__ void silu_and_mul_rows(RowView<const T> gate_up, RowView<T> out, int width) {
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kVec;
  if (i >= width) return;
  float gate[kVec];
  float up[kVec];
  load_vec<kVec>(gate_up.row(row) + i, gate);
  load_vec<kVec>(gate_up.row(row) + width + i, up);
#pragma unroll
  for (int v = 0; v < kVec; ++v) gate[v] = silu(gate[v]) * up[v];
  store_vec<kVec>(gate, out.row(row) + i);
}

}  // namespace

cudaError_t launch_silu_and_mul(const GatedRows& rows, cudaStream_t stream) {
  constexpr int kThreads = 128;
  const uintptr_t addresses =
      reinterpret_cast<uintptr_t>(rows.gate_up) | reinterpret_cast<uintptr_t>(rows.out);
  const int64_t lengths = rows.gate_up_stride | rows.out_stride | rows.width;
  with_activation_type(rows.dtype, [&](auto type) {
    using T = decltype(type);
    with_vec_width(addresses % 16 == 0 && lengths % kVecWidth == 0, [&](auto vec) {
      constexpr int kVec = decltype(vec)::value;
      const dim3 grid(static_cast<unsigned>(rows.rows),
                      static_cast<unsigned>(ceil_div(rows.width, kThreads * kVec)));
      launch_overlapped(silu_and_mul_rows<T, kVec>,
                        grid,
                        kThreads,
                        stream,
                        RowView<const T>{static_cast<const T*>(rows.gate_up), rows.gate_up_stride},
                        RowView<T>{static_cast<T*>(rows.out), rows.out_stride},
                        static_cast<int>(rows.width));
    });
  });
  return cudaGetLastError();
}

void silu_and_mul_cuda(OpState&, device::Stream& stream, const SiluAndMulParams& params) {
  const Tensor& gate_up = params.gate_up;
  const Tensor& out = params.out;
  check_rows(gate_up);
  check_rows(out);
  CHECK(gate_up.dtype == out.dtype && gate_up.dim(0) == out.dim(0) && gate_up.dim(1) == 2 * out.dim(1),
        "{} to {}",
        gate_up.to_string(),
        out.to_string());
  device::CudaStream& cuda = device::as_cuda(stream);
  if (out.numel() == 0 || !cuda.enter()) return;
  const GatedRows rows{.dtype = out.dtype,
                       .gate_up = gate_up.data,
                       .gate_up_stride = gate_up.stride(0),
                       .out = out.data,
                       .out_stride = out.stride(0),
                       .rows = out.dim(0),
                       .width = out.dim(1)};
  cuda.check(launch_silu_and_mul(rows, cuda.handle()), "silu_and_mul");
}

}  // namespace llm_dist::kernels
