// Embedding lookup over one vocabulary shard: a block a token copies its row, or zeros.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

namespace llm_dist::kernels {
namespace {

// Word: what is copied at once, uint4 or uint16_t/uint32_t.
template <typename Word>
__global__ void copy_rows(const int32_t* __restrict__ ids,
                          const Word* __restrict__ table,
                          int64_t num_rows,
                          int64_t vocab_begin,
                          Word* __restrict__ out,
                          int64_t out_stride,
                          int width) {
  const int64_t token = blockIdx.x;
  const int64_t row = ids[token] - vocab_begin;
  const bool present = row >= 0 && row < num_rows;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += static_cast<int>(blockDim.x)) {
    out[token * out_stride + i] = present ? table[row * width + i] : Word{};
  }
}

template <typename Word>
void launch_copy(const EmbeddingParams& params, cudaStream_t stream) {
  const int64_t element = dtype_bytes(params.out.dtype);
  const int64_t width = params.table.k * element / static_cast<int64_t>(sizeof(Word));
  const int64_t stride = params.out.stride(0) * element / static_cast<int64_t>(sizeof(Word));
  copy_rows<Word><<<static_cast<unsigned>(params.out.dim(0)), threads_for(width, 256), 0, stream>>>(
      params.ids.as<int32_t>(),
      static_cast<const Word*>(params.table.parts[0].data),
      params.table.n,
      params.vocab_begin,
      static_cast<Word*>(params.out.data),
      stride,
      static_cast<int>(width));
}

bool takes_whole_words(const EmbeddingParams& params) {
  const auto aligned = [](const void* data) {
    return reinterpret_cast<uintptr_t>(data) % sizeof(uint4) == 0;
  };
  const int64_t element = dtype_bytes(params.out.dtype);
  return aligned(params.table.parts[0].data) && aligned(params.out.data) &&
         params.table.k * element % static_cast<int64_t>(sizeof(uint4)) == 0 &&
         params.out.stride(0) * element % static_cast<int64_t>(sizeof(uint4)) == 0;
}

}  // namespace

void embedding_cuda(OpState&, device::Stream& stream, const EmbeddingParams& params) {
  check_rows(params.out);
  CHECK(params.table.scheme == scheme_of(params.out.dtype),
        "a table in {} for {}",
        params.table.scheme,
        params.out.to_string());
  CHECK_EQ(params.table.k, params.out.dim(1));
  i32_vector(params.ids, params.out.dim(0));
  device::CudaStream& cuda = device::as_cuda(stream);
  if (params.out.numel() == 0 || !cuda.enter()) return;
  if (takes_whole_words(params)) {
    launch_copy<uint4>(params, cuda.handle());
  } else if (dtype_bytes(params.out.dtype) == 2) {
    launch_copy<uint16_t>(params, cuda.handle());
  } else {
    launch_copy<uint32_t>(params, cuda.handle());
  }
  cuda.check(cudaGetLastError(), "embedding");
}

}  // namespace llm_dist::kernels
