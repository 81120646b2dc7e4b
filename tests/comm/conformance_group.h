// One rank of one group under test, with its stream; and host tensors with known contents.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "comm/world.h"
#include "src/device/cpu/cpu_stream.h"

namespace llm_dist::comm {

struct GroupUnderTest {
  std::unique_ptr<Communicator> comm;
  std::unique_ptr<device::CpuStream> stream;  // gone before the communicator

  int rank() const { return comm->info().rank; }
  int size() const { return comm->info().size; }
  Status synchronize(double seconds = 30) { return stream->synchronize(Deadline::after_seconds(seconds)); }
};

inline std::vector<int> all_ranks(const World& world) {
  std::vector<int> ranks(static_cast<size_t>(world.rank_info().size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

inline GroupUnderTest make_group(World& world,
                                 std::span<const int> ranks,
                                 const std::string& name,
                                 double timeout_seconds = 30,
                                 std::function<void(uint64_t)> before_task = {}) {
  auto comm = world.make_communicator(
      ranks, name, std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000)));
  CHECK(comm.ok(), "{}", comm.status().to_string());
  return {std::move(comm).value(),
          std::make_unique<device::CpuStream>(
              device::CpuStreamOptions{.name = name, .before_task = std::move(before_task)})};
}

inline GroupUnderTest make_group(World& world, const std::string& name = "all", double timeout_seconds = 30) {
  return make_group(world, all_ranks(world), name, timeout_seconds);
}

// A small multiple of 1/8: sums over a few ranks are exact in every type.
template <typename T>
T known_value(int rank, int64_t index) {
  auto eighths = static_cast<int>((rank * 31 + index * 7) % 17) - 8;
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(eighths);
  } else {
    return from_float<T>(static_cast<float>(eighths) / 8);
  }
}

template <typename T>
double as_double(T value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<double>(value);
  } else {
    return static_cast<double>(to_float(value));
  }
}

template <typename T>
class HostTensor {
 public:
  explicit HostTensor(int64_t count) : values_(static_cast<size_t>(count)) {}
  static HostTensor known(int rank, int64_t count, int64_t first_index = 0) {
    HostTensor made(count);
    for (int64_t i = 0; i < count; ++i) made[i] = known_value<T>(rank, first_index + i);
    return made;
  }
  T& operator[](int64_t i) { return values_[static_cast<size_t>(i)]; }
  int64_t size() const { return static_cast<int64_t>(values_.size()); }
  Tensor view() { return view(0, size()); }
  Tensor view(int64_t begin, int64_t count) {
    return Tensor::contiguous(values_.data() + begin, DTypeOf<T>::kValue, {count});
  }
  std::string bytes() const {
    return {reinterpret_cast<const char*>(values_.data()), values_.size() * sizeof(T)};
  }

 private:
  std::vector<T> values_;
};

// The first index where `actual` is not what `expected(index)` says; −1 when there is none. One assertion for
// a million elements.
template <typename T, typename Expected>
int64_t first_difference(HostTensor<T>& actual, Expected expected) {
  for (int64_t i = 0; i < actual.size(); ++i)
    if (as_double(actual[i]) != expected(i)) return i;
  return -1;
}

template <typename F>
void for_each_dtype(F f) {
  f(float{});
  f(Float16{});
  f(BFloat16{});
  f(int32_t{});
  f(int64_t{});
}

}  // namespace llm_dist::comm
