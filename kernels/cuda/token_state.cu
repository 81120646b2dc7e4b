// Reads and writes of the token history, and the gather of rows that are sampled.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

namespace llm_dist::kernels {
namespace {

constexpr int kThreads = 128;

__global__ void gather_tokens(RowView<const int32_t> history,
                              const int32_t* __restrict__ slots,
                              const int32_t* __restrict__ positions,
                              int32_t* __restrict__ ids,
                              int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) ids[i] = slots[i] < 0 ? 0 : history.row(slots[i])[positions[i]];
}

__global__ void scatter_tokens(const int32_t* __restrict__ tokens,
                               int64_t stride,
                               const int32_t* __restrict__ slots,
                               const int32_t* __restrict__ positions,
                               RowView<int32_t> history,
                               int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n && slots[i] >= 0) history.row(slots[i])[positions[i]] = tokens[i * stride];
}

template <typename T>
__global__ void gather_rows(RowView<const T> x,
                            int64_t x_begin,
                            int64_t x_rows,
                            const int32_t* __restrict__ rows,
                            RowView<T> out,
                            int width) {
  const int64_t i = blockIdx.x;
  const int64_t row = rows[i] - x_begin;
  const bool present = rows[i] >= 0 && row >= 0 && row < x_rows;
  for (int c = static_cast<int>(threadIdx.x); c < width; c += static_cast<int>(blockDim.x)) {
    out.row(i)[c] = present ? x.row(row)[c] : T{};
  }
}

// Moves bits only, so the element type is a word of the element's size.
template <typename Word>
void launch_gather_rows(const GatherRowsParams& params, int64_t elements_per_word, cudaStream_t stream) {
  const auto view = [&](const Tensor& tensor) {
    return RowView<Word>{static_cast<Word*>(tensor.data), tensor.stride(0) / elements_per_word};
  };
  const int64_t width = params.x.dim(1) / elements_per_word;
  const RowView<Word> x = view(params.x);
  gather_rows<Word><<<static_cast<unsigned>(params.out.dim(0)), threads_for(width, 256), 0, stream>>>(
      {x.data, x.stride},
      params.x_begin,
      params.x.dim(0),
      params.rows.as<int32_t>(),
      view(params.out),
      static_cast<int>(width));
}

}  // namespace

void gather_tokens_cuda(OpState&, device::Stream& stream, const GatherTokensParams& params) {
  const int64_t n = params.ids.dim(0);
  device::CudaStream& cuda = device::as_cuda(stream);
  CHECK_EQ(params.history.dtype, DType::kI32);
  const int32_t* slots = i32_vector(params.slots, n);
  const int32_t* positions = i32_vector(params.positions, n);
  int32_t* ids = i32_vector(params.ids, n);
  if (n == 0 || !cuda.enter()) return;
  gather_tokens<<<static_cast<unsigned>(ceil_div(n, kThreads)), kThreads, 0, cuda.handle()>>>(
      rows_as<const int32_t>(params.history), slots, positions, ids, static_cast<int>(n));
  cuda.check(cudaGetLastError(), "gather_tokens");
}

void scatter_tokens_cuda(OpState&, device::Stream& stream, const ScatterTokensParams& params) {
  const int64_t n = params.slots.dim(0);
  CHECK_EQ(params.history.dtype, DType::kI32);
  CHECK(n == 0 || params.tokens.numel() > (n - 1) * params.token_stride,
        "{} tokens at stride {} of {}",
        n,
        params.token_stride,
        params.tokens.to_string());
  const int32_t* slots = i32_vector(params.slots, n);
  const int32_t* positions = i32_vector(params.positions, n);
  device::CudaStream& cuda = device::as_cuda(stream);
  if (n == 0 || !cuda.enter()) return;
  scatter_tokens<<<static_cast<unsigned>(ceil_div(n, kThreads)), kThreads, 0, cuda.handle()>>>(
      params.tokens.as<int32_t>(),
      params.token_stride,
      slots,
      positions,
      rows_as<int32_t>(params.history),
      static_cast<int>(n));
  cuda.check(cudaGetLastError(), "scatter_tokens");
}

void gather_rows_cuda(OpState&, device::Stream& stream, const GatherRowsParams& params) {
  check_rows(params.x);
  check_rows(params.out);
  CHECK_EQ(params.x.dtype, params.out.dtype);
  CHECK_EQ(params.x.dim(1), params.out.dim(1));
  i32_vector(params.rows, params.out.dim(0));
  device::CudaStream& cuda = device::as_cuda(stream);
  if (params.out.numel() == 0 || !cuda.enter()) return;
  const int64_t element = dtype_bytes(params.x.dtype);
  if (is_vectorizable(params.x, params.out)) {
    launch_gather_rows<uint4>(params, static_cast<int64_t>(sizeof(uint4)) / element, cuda.handle());
  } else if (element == 2) {
    launch_gather_rows<uint16_t>(params, 1, cuda.handle());
  } else {
    launch_gather_rows<uint32_t>(params, 1, cuda.handle());
  }
  cuda.check(cudaGetLastError(), "gather_rows");
}

}  // namespace llm_dist::kernels
