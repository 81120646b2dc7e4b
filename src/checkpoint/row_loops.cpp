#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/checkpoint/row_loops.cpp"  // NOLINT
// clang-format off: the rest comes after the list of targets
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "src/checkpoint/row_loops.h"

#include <cstring>

#include "src/base/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace llm_dist::checkpoint::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using WordTag = hn::RebindToUnsigned<FloatTag>;
using IntTag = hn::RebindToSigned<FloatTag>;
using HalfTag = hn::Rebind<uint16_t, FloatTag>;
using ByteTag = hn::Rebind<uint8_t, FloatTag>;
using FloatVec = hn::Vec<FloatTag>;
using WordVec = hn::Vec<WordTag>;
constexpr int64_t kLanes = static_cast<int64_t>(HWY_LANES(float));

HWY_INLINE WordVec word(uint32_t value) { return hn::Set(WordTag(), value); }
HWY_INLINE WordVec choose(hn::Mask<FloatTag> mask, WordVec yes, WordVec no) {
  return hn::IfThenElse(hn::RebindMask(WordTag(), mask), yes, no);
}

// run(i, count) for values i to i + count: kLanes of them, but for the last ones.
template <typename Run>
HWY_INLINE void each_vector(int64_t k, Run&& run) {
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) run(i, kLanes);
  if (i < k) run(i, k - i);
}

// The lanes from `count` on are 0, or are not stored. Rows of files stand at any address.
template <typename D>
HWY_INLINE hn::Vec<D> load(D d, const void* from, int64_t count) {
  using T = hn::TFromD<D>;
  if (count == kLanes) return hn::LoadU(d, static_cast<const T*>(from));
  alignas(64) T padded[kLanes] = {};
  std::memcpy(padded, from, static_cast<size_t>(count) * sizeof(T));
  return hn::Load(d, padded);
}
template <typename D>
HWY_INLINE void store(D d, hn::Vec<D> values, void* to, int64_t count) {
  using T = hn::TFromD<D>;
  if (count == kLanes) return hn::StoreU(values, d, static_cast<T*>(to));
  alignas(64) T padded[kLanes];
  hn::Store(values, d, padded);
  std::memcpy(to, padded, static_cast<size_t>(count) * sizeof(T));
}

void make_up(uint64_t row_key, int64_t col_begin, float* values, int64_t k) {
  constexpr double kStandardDeviation = 0.02;
  // Four uniform values in [0, 255]: mean 510, variance 4 · 256² / 12.
  constexpr auto kScale = static_cast<float>(kStandardDeviation / (256.0 * 0.57735026918962576));
  const WordVec first_key = word(static_cast<uint32_t>(row_key));
  const WordVec second_key = word(static_cast<uint32_t>(row_key >> 32));
  const WordVec evens = word(0x00ff00ffu);
  const WordVec first_cols = hn::Iota(WordTag(), static_cast<uint32_t>(col_begin));
  // Integers of 32 bits throughout: products of 64 would take most of a large model's start.
  each_vector(k, [&](int64_t i, int64_t count) {
    WordVec bits = hn::Add(first_cols, word(static_cast<uint32_t>(i)));
    bits = hn::Mul(hn::Xor(bits, first_key), word(0x7feb352du));
    bits = hn::Xor(bits, hn::ShiftRight<15>(bits));
    bits = hn::Mul(hn::Xor(bits, second_key), word(0x846ca68bu));
    bits = hn::Xor(bits, hn::ShiftRight<16>(bits));
    const WordVec pairs = hn::Add(hn::And(bits, evens), hn::And(hn::ShiftRight<8>(bits), evens));
    const WordVec sum = hn::Add(hn::And(pairs, word(0xffff)), hn::ShiftRight<16>(pairs));
    const auto centred = hn::Sub(hn::BitCast(IntTag(), sum), hn::Set(IntTag(), 510));
    const FloatVec value = hn::Mul(hn::ConvertTo(FloatTag(), centred), hn::Set(FloatTag(), kScale));
    store(FloatTag(), value, values + i, count);
  });
}

void widen_bf16(const std::byte* row, float* values, int64_t k) {
  each_vector(k, [&](int64_t i, int64_t count) {
    const WordVec bits = hn::PromoteTo(WordTag(), load(HalfTag(), row + 2 * i, count));
    store(FloatTag(), hn::BitCast(FloatTag(), hn::ShiftLeft<16>(bits)), values + i, count);
  });
}

void round_to_bf16(const float* values, std::byte* row, int64_t k) {
  each_vector(k, [&](int64_t i, int64_t count) {
    const FloatVec value = load(FloatTag(), values + i, count);
    const WordVec bits = hn::BitCast(WordTag(), value);
    const WordVec odd = hn::And(hn::ShiftRight<16>(bits), word(1));
    const WordVec rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, word(0x7fff))));
    const WordVec quiet = hn::Or(hn::ShiftRight<16>(bits), word(0x40));
    store(HalfTag(), hn::TruncateTo(HalfTag(), choose(hn::IsNaN(value), quiet, rounded)), row + 2 * i, count);
  });
}

void encode_f8(const float* values, float scale, std::byte* codes, int64_t k) {
  // The last bit of it as a float is the step of subnormal numbers, 2⁻⁹.
  const FloatVec align = hn::Set(FloatTag(), 0x1p14f);
  each_vector(k, [&](int64_t i, int64_t count) {
    const FloatVec value = hn::Div(load(FloatTag(), values + i, count), hn::Set(FloatTag(), scale));
    const WordVec sign = hn::And(hn::ShiftRight<24>(hn::BitCast(WordTag(), value)), word(0x80));
    const FloatVec bounded = hn::Min(hn::Abs(value), hn::Set(FloatTag(), kLargestF8E4M3));
    const WordVec magnitude = hn::BitCast(WordTag(), bounded);
    const WordVec odd = hn::And(hn::ShiftRight<20>(magnitude), word(1));
    const WordVec rounded = hn::ShiftRight<20>(hn::Add(magnitude, hn::Add(odd, word(0x7ffff))));
    const WordVec normal = hn::Sub(rounded, word(120u << 3));
    const WordVec subnormal =
        hn::Sub(hn::BitCast(WordTag(), hn::Add(bounded, align)), hn::BitCast(WordTag(), align));
    const WordVec code = choose(hn::Lt(bounded, hn::Set(FloatTag(), 0x1p-6f)), subnormal, normal);
    const WordVec known = choose(hn::IsNaN(value), word(0x7f), code);
    store(ByteTag(), hn::TruncateTo(ByteTag(), hn::Or(sign, known)), codes + i, count);
  });
}

// As integers: magnitudes stand in the same order, and what is not finite above all others.
uint32_t largest_bits(const float* values, int64_t k) {
  WordVec largest = word(0);
  each_vector(k, [&](int64_t i, int64_t count) {
    const WordVec bits = load(WordTag(), values + i, count);
    largest = hn::Max(largest, hn::And(bits, word(0x7fffffff)));
  });
  return hn::GetLane(hn::MaxOfLanes(WordTag(), largest));
}

}  // namespace llm_dist::checkpoint::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llm_dist::checkpoint {

HWY_EXPORT(make_up);
HWY_EXPORT(widen_bf16);
HWY_EXPORT(round_to_bf16);
HWY_EXPORT(encode_f8);
HWY_EXPORT(largest_bits);

void make_up_row(uint64_t row_key, int64_t col_begin, float* values, int64_t k) {
  HWY_DYNAMIC_DISPATCH(make_up)(row_key, col_begin, values, k);
}
void widen_bf16_row(const std::byte* row, float* values, int64_t k) {
  HWY_DYNAMIC_DISPATCH(widen_bf16)(row, values, k);
}
void round_to_bf16_row(const float* values, std::byte* row, int64_t k) {
  HWY_DYNAMIC_DISPATCH(round_to_bf16)(values, row, k);
}
void encode_f8_row(const float* values, float scale, std::byte* codes, int64_t k) {
  HWY_DYNAMIC_DISPATCH(encode_f8)(values, scale, codes, k);
}
uint32_t largest_magnitude_bits(const float* values, int64_t k) {
  return HWY_DYNAMIC_DISPATCH(largest_bits)(values, k);
}

}  // namespace llm_dist::checkpoint
#endif
