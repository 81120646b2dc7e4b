#include "kernels/cpu/linear_f8.h"

#include <algorithm>

#include "kernels/cpu/linear_rows.h"
#include "kernels/cpu/linear_skinny.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/quant.h"

namespace llm_dist::kernels {
namespace {

constexpr int64_t kRows = 4;  // of the weight as floats: they fit in a thread's scratch
constexpr int64_t kTokens = 8;
constexpr int64_t kLeastValuesPerThread = 32 * 1024;

// The rows [row, row + count) by one block of tokens.
void multiply_rows(const CpuOpState& state,
                   const LinearParams& params,
                   int64_t row,
                   int64_t count,
                   int64_t token,
                   int64_t tokens,
                   float* scratch) {
  const int64_t k = params.weight.k;
  const SkinnyFn run_tile =
      state.level() == CpuLevel::kAvx512 ? skinny_avx512(FloatKind::kF32) : skinny_avx2(FloatKind::kF32);
  for (int64_t r = 0; r < count; ++r) dequantize_weight_row(params.weight, row + r, scratch + r * k);
  const auto* x = reinterpret_cast<const float*>(state.activation_workspace().data());
  alignas(64) float sums[kTokens * kRows];
  for (int64_t t = 0; t < tokens; t += kTokens) {
    const int64_t tile_tokens = std::min(kTokens, tokens - t);
    run_tile({.rows = reinterpret_cast<const std::byte*>(scratch),
              .num_rows = count,
              .k = k,
              .x = x + t * k,
              .tokens = tile_tokens,
              .out = sums,
              .out_stride = kRows});
    for (int64_t i = 0; i < tile_tokens; ++i) {
      store_outputs(params.out, params.bias, token + t + i, row, sums + i * kRows, count);
    }
  }
}

void run_block(CpuOpState& state, const LinearParams& params, int64_t token, int64_t tokens) {
  const int64_t k = params.weight.k;
  auto* x = reinterpret_cast<float*>(state.activation_workspace().data());
  for (int64_t t = 0; t < tokens; ++t) {
    convert_to_f32_avx2(float_kind(params.x.dtype), row_at(params.x, token + t), x + t * k, k);
  }
  const int64_t groups = (params.weight.n + kRows - 1) / kRows;
  parallel_for(state.threads(),
               groups,
               kLeastValuesPerThread / (kRows * k) + 1,
               [&](int64_t begin, int64_t end, int thread) {
                 auto* scratch = reinterpret_cast<float*>(state.thread_scratch(thread).data());
                 for (int64_t g = begin; g < end; ++g) {
                   const int64_t row = g * kRows;
                   const int64_t count = std::min(kRows, params.weight.n - row);
                   multiply_rows(state, params, row, count, token, tokens, scratch);
                 }
               });
}

}  // namespace

void run_f8_linear(CpuOpState& state, const LinearParams& params) {
  const int64_t tokens = params.x.dim(0);
  for (int64_t t = 0; t < tokens; t += kTokenBlock) {
    run_block(state, params, t, std::min(kTokenBlock, tokens - t));
  }
}

}  // namespace llm_dist::kernels
