// SiLU(gate) · up, elementwise over the merged projection's output.
#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

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
  for (int v = 0; v < kVec; ++v) gate[v] = gate[v] / (1.0f + __expf(-gate[v])) * up[v];
  store_vec<kVec>(gate, out.row(row) + i);
}

}  // namespace

void silu_and_mul_cuda(OpState&, device::Stream& stream, const SiluAndMulParams& params) {
  const Tensor& out = params.out;
  CHECK(params.gate_up.dtype == out.dtype && params.gate_up.dim(0) == out.dim(0) &&
            params.gate_up.dim(1) == 2 * out.dim(1),
        "{} to {}",
        params.gate_up.to_string(),
        out.to_string());
  device::CudaStream& cuda = device::as_cuda(stream);
  const int64_t rows = out.dim(0);
  const int64_t width = out.dim(1);
  if (rows == 0 || width == 0 || !cuda.enter()) return;
  constexpr int kThreads = 128;
  with_activation_type(out.dtype, [&](auto type) {
    using T = decltype(type);
    with_vec_width(is_vectorizable(params.gate_up, out), [&](auto vec) {
      constexpr int kVec = decltype(vec)::value;
      const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(ceil_div(width, kThreads * kVec)));
      launch_overlapped(silu_and_mul_rows<T, kVec>,
                        grid,
                        kThreads,
                        cuda.handle(),
                        rows_as<const T>(params.gate_up),
                        rows_as<T>(out),
                        static_cast<int>(width));
    });
  });
  cuda.check(cudaGetLastError(), "silu_and_mul");
}

}  // namespace llm_dist::kernels
