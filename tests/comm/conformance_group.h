// One rank of one group under test, with its stream; and tensors with known contents on the site's device.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "tests/comm/site.h"

namespace llm_dist::comm {

// Move only.
class GroupUnderTest {
 public:
  GroupUnderTest(Site& site_of_rank, std::shared_ptr<Communicator> group, std::unique_ptr<device::Stream> on)
      : comm(std::move(group)), stream(std::move(on)), site_(&site_of_rank) {}
  GroupUnderTest(GroupUnderTest&&) = default;
  // Leaves no operation behind: a device's stream waits for its work when it goes, without a deadline.
  ~GroupUnderTest();

  int rank() const { return comm->info().rank; }
  int size() const { return comm->info().size; }
  // Until the stream has run what was issued, or failed. Where operations do not end themselves, a group that
  // has an error, or takes too long, ends here.
  Status synchronize(double seconds = 30);

  std::shared_ptr<Communicator> comm;
  std::unique_ptr<device::Stream> stream;  // gone before the communicator

 private:
  // Ends the group, sees the stream's work end, and fails the stream with `cause`, which it returns.
  Status end(const Status& cause);

  Site* site_;
};

inline std::vector<int> all_ranks(const World& world) {
  std::vector<int> ranks(static_cast<size_t>(world.rank_info().size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// On `stream`, or on a new one of the site's.
GroupUnderTest make_group(World& world,
                          Site& site,
                          std::span<const int> ranks,
                          const std::string& name,
                          double timeout_seconds = 30,
                          std::unique_ptr<device::Stream> stream = nullptr);

inline GroupUnderTest make_group(World& world,
                                 Site& site,
                                 const std::string& name = "all",
                                 double timeout_seconds = 30) {
  return make_group(world, site, all_ranks(world), name, timeout_seconds);
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

// Memory of the site's device, and the host's copy of it: zeros, until written. The device has neither zeros
// nor values before upload(); the host has the device's after download() and a synchronize().
template <typename T>
class SiteTensor {
 public:
  SiteTensor(Site& site, int64_t count)
      : memory_(std::make_unique<SiteMemory>(site, count * static_cast<int64_t>(sizeof(T)))), size_(count) {}
  static SiteTensor known(Site& site, int rank, int64_t count, int64_t first_index = 0) {
    SiteTensor made(site, count);
    for (int64_t i = 0; i < count; ++i) made[i] = known_value<T>(rank, first_index + i);
    return made;
  }

  int64_t size() const { return size_; }
  // The host's copy.
  T& operator[](int64_t i) { return reinterpret_cast<T*>(memory_->host_data())[i]; }
  const T& operator[](int64_t i) const { return reinterpret_cast<const T*>(memory_->host_data())[i]; }
  std::string bytes() const {
    return {reinterpret_cast<const char*>(memory_->host_data()), static_cast<size_t>(size_) * sizeof(T)};
  }
  bool fences_stand() const { return memory_->fences_stand(); }

  void upload(device::Stream& stream) const { memory_->upload(stream); }
  void download(device::Stream& stream) const { memory_->download(stream); }
  // On the device.
  Tensor view() const { return view(0, size()); }
  Tensor view(int64_t begin, int64_t count) const {
    return Tensor::contiguous(
        reinterpret_cast<T*>(memory_->device_data()) + begin, DTypeOf<T>::kValue, {count}, memory_->where());
  }

 private:
  std::unique_ptr<SiteMemory> memory_;
  int64_t size_;
};

constexpr int64_t kBrokenFence = -2;

// The first index where `actual` is not what `expected(index)` says; −1 when there is none. One assertion for
// a million elements. kBrokenFence when something was written beside the tensor.
template <typename T, typename Expected>
int64_t first_difference(const SiteTensor<T>& actual, Expected expected) {
  if (!actual.fences_stand()) return kBrokenFence;
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
