#include "comm/reduce.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace llm_dist::comm {
namespace {

// Elements that are accumulated at a time: two arrays of them stay in the first-level cache.
constexpr int64_t kBlock = 512;

template <typename T>
struct Accumulator {
  using Type = T;
};
template <>
struct Accumulator<BFloat16> {
  using Type = float;
};
template <>
struct Accumulator<Float16> {
  using Type = float;
};

template <typename T, typename Acc>
void widen(const T* from, int64_t count, Acc* to) {
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<T, Acc>) {
      to[i] = from[i];
    } else {
      to[i] = to_float(from[i]);
    }
  }
}

template <typename T, typename Acc>
void narrow(const Acc* from, int64_t count, T* to) {
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<T, Acc>) {
      to[i] = from[i];
    } else {
      to[i] = from_float<T>(from[i]);
    }
  }
}

#if defined(__x86_64__)
// to_float(Float16) is a call an element; eight at a time where the CPU converts.
__attribute__((target("avx,f16c"))) void widen_f16c(const Float16* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  for (; i < count; ++i) to[i] = to_float(from[i]);
}
__attribute__((target("avx,f16c"))) void narrow_f16c(const float* from, int64_t count, Float16* to) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  for (; i < count; ++i) to[i] = to_f16(from[i]);
}

template <>
void widen<Float16, float>(const Float16* from, int64_t count, float* to) {
  if (__builtin_cpu_supports("f16c")) return widen_f16c(from, count, to);
  for (int64_t i = 0; i < count; ++i) to[i] = to_float(from[i]);
}
template <>
void narrow<Float16, float>(const float* from, int64_t count, Float16* to) {
  if (__builtin_cpu_supports("f16c")) return narrow_f16c(from, count, to);
  for (int64_t i = 0; i < count; ++i) to[i] = to_f16(from[i]);
}
#endif

struct Sum {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      using Unsigned = std::make_unsigned_t<T>;  // wraps; a signed overflow would be undefined
      return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    } else {
      return a + b;
    }
  }
};
struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};
struct Min {
  template <typename T>
  T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};

template <typename T, typename Op>
void reduce_typed(std::span<const std::byte* const> parts, int64_t count, std::byte* out, Op op) {
  using Acc = typename Accumulator<T>::Type;
  alignas(64) T staged[kBlock];
  alignas(64) Acc sum[kBlock];
  alignas(64) Acc next[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    int64_t n = std::min(kBlock, count - begin);
    auto bytes = static_cast<size_t>(n) * sizeof(T);
    auto offset = static_cast<size_t>(begin) * sizeof(T);
    for (size_t p = 0; p < parts.size(); ++p) {
      std::memcpy(staged, parts[p] + offset, bytes);
      widen(staged, n, p == 0 ? sum : next);
      if (p == 0) continue;
      for (int64_t i = 0; i < n; ++i) sum[i] = op(sum[i], next[i]);
    }
    narrow(sum, n, staged);
    std::memcpy(out + offset, staged, bytes);
  }
}

template <typename T>
void reduce_by_op(ReduceOp op, std::span<const std::byte* const> parts, int64_t count, std::byte* out) {
  switch (op) {
    case ReduceOp::kSum: return reduce_typed<T>(parts, count, out, Sum{});
    case ReduceOp::kMax: return reduce_typed<T>(parts, count, out, Max{});
    case ReduceOp::kMin: return reduce_typed<T>(parts, count, out, Min{});
  }
}

}  // namespace

bool is_reducible(DType dtype) { return dtype != DType::kU8; }

void reduce_parts(
    DType dtype, ReduceOp op, std::span<const std::byte* const> parts, int64_t count, std::byte* out) {
  CHECK(!parts.empty(), "nothing to reduce");
  switch (dtype) {
    case DType::kF32: return reduce_by_op<float>(op, parts, count, out);
    case DType::kF16: return reduce_by_op<Float16>(op, parts, count, out);
    case DType::kBF16: return reduce_by_op<BFloat16>(op, parts, count, out);
    case DType::kI32: return reduce_by_op<int32_t>(op, parts, count, out);
    case DType::kI64: return reduce_by_op<int64_t>(op, parts, count, out);
    case DType::kU8:
    case DType::kF8E4M3: break;
  }
  CHECK(false, "a reduction over {}", dtype);
}

}  // namespace llm_dist::comm
