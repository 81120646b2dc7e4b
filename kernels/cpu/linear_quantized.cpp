#include "kernels/cpu/linear_quantized.h"

#include <algorithm>

#include "kernels/cpu/linear_quant.h"
#include "kernels/cpu/linear_rows.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/quant.h"

namespace llm_dist::kernels {
namespace {

constexpr int64_t kBlockValues = 32;
// A thread's least share, in bytes of weights times tiles of tokens: some 2 µs of work.
constexpr int64_t kLeastBytesPerThread = 64 * 1024;
constexpr int64_t kGroupsPerThread = 4;  // where there are fewer, their tokens are shared out too
constexpr int64_t kLeastValuesPerThread = 32 * 1024;  // of activations to quantize

QuantScheme quant_scheme(WeightScheme scheme) {
  switch (scheme) {
    case WeightScheme::kQ4_0: return QuantScheme::kQ4_0;
    case WeightScheme::kQ4_1: return QuantScheme::kQ4_1;
    default: CHECK(scheme == WeightScheme::kQ8_0, "{} is not block-quantized", to_string(scheme));
  }
  return QuantScheme::kQ8_0;
}

QuantTileFn tile_function(CpuLevel level, QuantScheme scheme) {
  switch (level) {
    case CpuLevel::kAvx512: return quant_tile_avx512(scheme);
    case CpuLevel::kAvxVnni: return quant_tile_avx_vnni(scheme);
    default: return quant_tile_avx2(scheme);
  }
}

void quantize_row(const Tensor& x, int64_t row, int64_t blocks, QuantizedBlock* out) {
  if (x.dtype == DType::kF32) {
    return quantize_blocks_avx2(reinterpret_cast<const float*>(row_at(x, row)), blocks, out);
  }
  constexpr int64_t kBlocksAtOnce = 8;
  alignas(32) float floats[kBlocksAtOnce * kBlockValues];
  for (int64_t b = 0; b < blocks; b += kBlocksAtOnce) {
    int64_t count = std::min(kBlocksAtOnce, blocks - b);
    convert_to_f32_avx2(float_kind(x.dtype), row_at(x, row, b * kBlockValues), floats, count * kBlockValues);
    quantize_blocks_avx2(floats, count, out + b);
  }
}

// One block of tokens, quantized, by all weight rows.
class QuantizedProduct {
 public:
  QuantizedProduct(CpuOpState& state, const LinearParams& params, int64_t token, int64_t tokens)
      : state_(state),
        params_(params),
        run_tile_(tile_function(state.level(), quant_scheme(params.weight.scheme))),
        x_(reinterpret_cast<QuantizedBlock*>(state.activation_workspace().data())),
        token_(token),
        tokens_(tokens),
        blocks_(params.weight.k / kBlockValues),
        group_bytes_(kPackedRows * row_bytes(params.weight.scheme, params.weight.k)) {}

  void run() {
    parallel_for(state_.threads(),
                 tokens_,
                 std::max<int64_t>(1, kLeastValuesPerThread / params_.weight.k),
                 [this](int64_t begin, int64_t end, int) {
                   for (int64_t t = begin; t < end; ++t) {
                     quantize_row(params_.x, token_ + t, blocks_, x_ + t * blocks_);
                   }
                 });
    const int64_t groups = (params_.weight.n + kPackedRows - 1) / kPackedRows;
    const int64_t tiles = (tokens_ + kQuantTileTokens - 1) / kQuantTileTokens;
    // A group's tiles stay together while there are groups enough to share out evenly.
    const int64_t wanted_parts = (kGroupsPerThread * state_.threads() + groups - 1) / groups;
    const int64_t parts = std::min(tiles, wanted_parts);
    parallel_for(state_.threads(),
                 groups * parts,
                 std::max<int64_t>(1, kLeastBytesPerThread * parts / (group_bytes_ * tiles)),
                 [=, this](int64_t begin, int64_t end, int thread) {
                   for (int64_t i = begin; i < end; ++i) {
                     const int64_t part = i % parts;
                     run_group(i / parts, thread, tiles * part / parts, tiles * (part + 1) / parts);
                   }
                 });
  }

 private:
  // The group where it lies, or its plain rows packed into this thread's scratch.
  const std::byte* packed_group(int64_t g, int thread) const {
    const Weight& weight = params_.weight;
    const auto* at = static_cast<const std::byte*>(weight.parts[0].data) + g * group_bytes_;
    const int64_t rows = std::min(kPackedRows, weight.n - g * kPackedRows);
    if (weight.packed && rows == kPackedRows) return at;
    std::byte* scratch = state_.thread_scratch(thread).data();
    pack_row_group(weight.scheme, at, rows, weight.k, scratch);
    return scratch;
  }

  void run_group(int64_t g, int thread, int64_t first_tile, int64_t end_tile) const {
    const std::byte* group = packed_group(g, thread);
    const int64_t column = g * kPackedRows;
    const int64_t rows = std::min(kPackedRows, params_.weight.n - column);
    const bool direct = rows == kPackedRows && params_.out.dtype == DType::kF32 && !params_.bias;
    alignas(64) float sums[kQuantTileTokens * kPackedRows];
    for (int64_t tile_index = first_tile; tile_index < end_tile; ++tile_index) {
      const int64_t t = tile_index * kQuantTileTokens;
      QuantTile tile{.group = group,
                     .x = x_ + t * blocks_,
                     .blocks = blocks_,
                     .tokens = std::min<int64_t>(kQuantTileTokens, tokens_ - t),
                     .out = sums,
                     .out_stride = kPackedRows};
      if (direct) {
        tile.out = reinterpret_cast<float*>(row_at(params_.out, token_ + t, column));
        tile.out_stride = params_.out.strides[0];
      }
      run_tile_(tile);
      for (int64_t i = 0; !direct && i < tile.tokens; ++i) {
        store_outputs(params_.out, params_.bias, token_ + t + i, column, sums + i * kPackedRows, rows);
      }
    }
  }

  CpuOpState& state_;
  const LinearParams& params_;
  QuantTileFn run_tile_;
  QuantizedBlock* x_;
  int64_t token_, tokens_, blocks_, group_bytes_;
};

}  // namespace

void run_quantized_linear(CpuOpState& state, const LinearParams& params) {
  const int64_t tokens = params.x.dim(0);
  for (int64_t t = 0; t < tokens; t += kTokenBlock) {
    QuantizedProduct(state, params, t, std::min(kTokenBlock, tokens - t)).run();
  }
}

void pack_weight(CpuOpState& state, const Weight& weight) {
  const int64_t group_bytes = kPackedRows * row_bytes(weight.scheme, weight.k);
  auto* rows = static_cast<std::byte*>(weight.parts[0].data);
  parallel_for(state.threads(), weight.n / kPackedRows, 1, [&](int64_t begin, int64_t end, int thread) {
    std::byte* plain = state.thread_scratch(thread).data();
    for (int64_t g = begin; g < end; ++g) {
      std::memcpy(plain, rows + g * group_bytes, static_cast<size_t>(group_bytes));
      pack_row_group(weight.scheme, plain, kPackedRows, weight.k, rows + g * group_bytes);
    }
  });
}

}  // namespace llm_dist::kernels
