#include "kernels/cpu/linear_dense.h"

#include <algorithm>

#include "kernels/cpu/linear_onednn.h"
#include "kernels/cpu/linear_rows.h"
#include "kernels/cpu/linear_skinny.h"
#include "kernels/cpu/parallel.h"

namespace llm_dist::kernels {
namespace {

constexpr int64_t kLeastBytesPerThread = 64 * 1024;  // of weights, times tiles of tokens
constexpr int64_t kLeastValuesPerThread = 32 * 1024;
constexpr int64_t kTileTokens = 8;
constexpr int64_t kTileRows = 64;

FloatKind weight_kind(WeightScheme scheme) {
  switch (scheme) {
    case WeightScheme::kF32: return FloatKind::kF32;
    case WeightScheme::kBF16: return FloatKind::kBF16;
    default:
      CHECK(scheme == WeightScheme::kF16, "{} is not dense", to_string(scheme));
      return FloatKind::kF16;
  }
}

// oneDNN multiplies equal dtypes. Others would need a converted copy of the weight, which our own kernels
// spare; bf16 without the instructions is emulated there, slower than ours.
bool takes_onednn(CpuOpState& state, const LinearParams& params) {
  if (params.x.dim(0) <= state.max_skinny_tokens()) return false;
  if (weight_kind(params.weight.scheme) != float_kind(params.x.dtype)) return false;
  return params.x.dtype != DType::kBF16 || state.has_native_bf16();
}

// Tokens in pieces of a few sizes, so that few primitives are ever made: making one takes about a
// millisecond, and a mixed batch has another number of tokens each step.
int64_t onednn_piece(int64_t tokens) {
  constexpr int64_t kStep = 64;
  if (tokens >= kStep) return tokens / kStep * kStep;
  for (int64_t piece : {32, 16}) {
    if (tokens >= piece) return piece;
  }
  return 0;
}

// One block of tokens, as floats, by all weight rows.
void run_skinny_block(CpuOpState& state, const LinearParams& params, int64_t token, int64_t tokens) {
  const Weight& weight = params.weight;
  const int64_t k = weight.k;
  const FloatKind kind = weight_kind(weight.scheme);
  const bool in_place = params.x.dtype == DType::kF32 && params.x.strides[0] == k;
  auto* x = in_place ? reinterpret_cast<float*>(row_at(params.x, token))
                     : reinterpret_cast<float*>(state.activation_workspace().data());
  if (!in_place) {
    parallel_for(
        state.threads(), tokens, kLeastValuesPerThread / k + 1, [&](int64_t begin, int64_t end, int) {
          for (int64_t t = begin; t < end; ++t) {
            convert_to_f32_avx2(float_kind(params.x.dtype), row_at(params.x, token + t), x + t * k, k);
          }
        });
  }
  const SkinnyFn run_tile = state.level() == CpuLevel::kAvx512 ? skinny_avx512(kind) : skinny_avx2(kind);
  const int64_t row_size = row_bytes(weight.scheme, k);
  const int64_t tiles = (tokens + kTileTokens - 1) / kTileTokens;
  parallel_for(state.threads(),
               weight.n,
               kLeastBytesPerThread / (row_size * tiles) + 1,
               [&](int64_t begin, int64_t end, int) {
                 alignas(64) float sums[kTileTokens * kTileRows];
                 for (int64_t row = begin; row < end; row += kTileRows) {
                   const int64_t rows = std::min(kTileRows, end - row);
                   for (int64_t t = 0; t < tokens; t += kTileTokens) {
                     const int64_t count = std::min(kTileTokens, tokens - t);
                     run_tile({.rows = static_cast<const std::byte*>(weight.parts[0].data) + row * row_size,
                               .num_rows = rows,
                               .k = k,
                               .x = x + t * k,
                               .tokens = count,
                               .out = sums,
                               .out_stride = kTileRows});
                     for (int64_t i = 0; i < count; ++i) {
                       store_outputs(params.out, params.bias, token + t + i, row, sums + i * kTileRows, rows);
                     }
                   }
                 }
               });
}

void run_skinny(CpuOpState& state, const LinearParams& params, int64_t begin) {
  const int64_t tokens = params.x.dim(0);
  for (int64_t t = begin; t < tokens; t += kTokenBlock) {
    run_skinny_block(state, params, t, std::min(kTokenBlock, tokens - t));
  }
}

}  // namespace

Status run_dense_linear(CpuOpState& state, const LinearParams& params) {
  const int64_t tokens = params.x.dim(0);
  int64_t done = 0;
  if (takes_onednn(state, params)) {
    while (int64_t piece = onednn_piece(tokens - done)) {
      ASSIGN_OR_RETURN(const bool ran,
                       state.dense_matmul().run({.dtype = params.x.dtype,
                                                 .out_dtype = params.out.dtype,
                                                 .m = piece,
                                                 .n = params.weight.n,
                                                 .k = params.weight.k,
                                                 .x = row_at(params.x, done),
                                                 .x_stride = params.x.strides[0],
                                                 .w = params.weight.parts[0].data,
                                                 .bias = params.bias.data,
                                                 .out = row_at(params.out, done),
                                                 .out_stride = params.out.strides[0]}));
      if (!ran) break;
      done += piece;
    }
  }
  if (done < tokens) run_skinny(state, params, done);
  return ok_status();
}

}  // namespace llm_dist::kernels
