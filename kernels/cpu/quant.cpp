#include "kernels/cpu/quant.h"

#include <algorithm>

namespace llm_dist::kernels {
namespace {

constexpr int64_t kBlockValues = 32;
constexpr int64_t kChunkBytes = 4;  // of one row, in a packed chunk

int64_t scales_per_block(WeightScheme scheme) { return scheme == WeightScheme::kQ4_1 ? 2 : 1; }

template <typename T>
T load(const std::byte* src) {
  T value;
  std::memcpy(&value, src, sizeof value);
  return value;
}

// One block in GGUF's layout to 32 floats.
void dequantize_block(WeightScheme scheme, const std::byte* block, float* dst) {
  const float d = to_float(load<Float16>(block));
  const std::byte* quants = block + 2 * scales_per_block(scheme);
  if (scheme == WeightScheme::kQ8_0) {
    for (int i = 0; i < 32; ++i) dst[i] = d * static_cast<float>(load<int8_t>(quants + i));
    return;
  }
  const float offset = scheme == WeightScheme::kQ4_1 ? to_float(load<Float16>(block + 2)) : -8.0f * d;
  for (int i = 0; i < 16; ++i) {
    const auto byte = std::to_integer<int>(quants[i]);
    dst[i] = d * static_cast<float>(byte & 15) + offset;
    dst[16 + i] = d * static_cast<float>(byte >> 4) + offset;
  }
}

template <typename T>
void widen(const std::byte* src, float* dst, int64_t k) {
  for (int64_t i = 0; i < k; ++i) dst[i] = to_float(load<T>(src + i * static_cast<int64_t>(sizeof(T))));
}

// Block `b` of row `lane` of a packed group, put back into GGUF's layout.
void unpack_block(WeightScheme scheme, const std::byte* group, int64_t b, int64_t lane, std::byte* block) {
  const int64_t block_bytes = scheme_traits(scheme).block_bytes;
  const std::byte* src = group + b * kPackedRows * block_bytes;
  int64_t at = 0;
  for (; at < 2 * scales_per_block(scheme); at += 2) {
    std::memcpy(block + at, src + at * kPackedRows + 2 * lane, 2);
  }
  for (; at < block_bytes; at += kChunkBytes) {
    std::memcpy(block + at, src + at * kPackedRows + kChunkBytes * lane, kChunkBytes);
  }
}

}  // namespace

void dequantize_row(WeightScheme scheme, const std::byte* src, float* dst, int64_t k) {
  switch (scheme) {
    case WeightScheme::kF32: return widen<float>(src, dst, k);
    case WeightScheme::kF16: return widen<Float16>(src, dst, k);
    case WeightScheme::kBF16: return widen<BFloat16>(src, dst, k);
    case WeightScheme::kF8E4M3: return widen<Float8E4M3>(src, dst, k);
    default: break;
  }
  CHECK(k % kBlockValues == 0, "a row of {} values in blocks of {}", k, kBlockValues);
  const int64_t block_bytes = scheme_traits(scheme).block_bytes;
  for (int64_t i = 0; i < k; i += kBlockValues, src += block_bytes) dequantize_block(scheme, src, dst + i);
}

void dequantize_weight_row(const Weight& weight, int64_t row, float* dst) {
  CHECK(row >= 0 && row < weight.n, "row {} of a weight of {} rows", row, weight.n);
  const auto* rows = static_cast<const std::byte*>(weight.parts[0].data);
  const int64_t bytes = row_bytes(weight.scheme, weight.k);
  if (!weight.packed || row >= weight.n / kPackedRows * kPackedRows) {
    dequantize_row(weight.scheme, rows + row * bytes, dst, weight.k);
    if (!has_row_scales(weight.scheme)) return;
    const float scale = weight.parts[1].as<float>()[row];
    for (int64_t i = 0; i < weight.k; ++i) dst[i] *= scale;
    return;
  }
  const std::byte* group = rows + row / kPackedRows * kPackedRows * bytes;
  std::byte block[kBlockValues + 2];
  for (int64_t b = 0; b < weight.k / kBlockValues; ++b) {
    unpack_block(weight.scheme, group, b, row % kPackedRows, block);
    dequantize_block(weight.scheme, block, dst + b * kBlockValues);
  }
}

void pack_row_group(WeightScheme scheme, const std::byte* src, int64_t rows, int64_t k, std::byte* dst) {
  const int64_t block_bytes = scheme_traits(scheme).block_bytes;
  const int64_t bytes = row_bytes(scheme, k);
  if (rows < kPackedRows) std::memset(dst, 0, static_cast<size_t>(kPackedRows * bytes));
  for (int64_t b = 0; b < k / kBlockValues; ++b, dst += kPackedRows * block_bytes) {
    for (int64_t lane = 0; lane < rows; ++lane) {
      const std::byte* block = src + lane * bytes + b * block_bytes;
      int64_t at = 0;
      for (; at < 2 * scales_per_block(scheme); at += 2) {
        std::memcpy(dst + at * kPackedRows + 2 * lane, block + at, 2);
      }
      for (; at < block_bytes; at += kChunkBytes) {
        std::memcpy(dst + at * kPackedRows + kChunkBytes * lane, block + at, kChunkBytes);
      }
    }
  }
}

}  // namespace llm_dist::kernels
