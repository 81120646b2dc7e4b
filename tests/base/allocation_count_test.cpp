// What the tests of steady states rest on: no form of operator new goes uncounted.
#include "tests/base/allocation_count.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <thread>

namespace llm_dist {
namespace {

struct alignas(64) CacheLine {
  char bytes[64];
};

template <typename Make>
void expect_one(Make make) {
  std::atomic<int64_t> of_thread{0};
  std::thread([&] {
    count_allocations_in(of_thread);
    int64_t before = num_allocations();
    void* memory = make();
    EXPECT_EQ(num_allocations() - before, 1);
    EXPECT_EQ(of_thread, 1);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % alignof(std::max_align_t), 0u);
  }).join();
}

template <typename T>
void expect_every_form_is_counted() {
  expect_one([]() -> void* {
    static std::unique_ptr<T> kept(new T);
    return kept.get();
  });
  expect_one([]() -> void* {
    static std::unique_ptr<T[]> kept(new T[3]);
    return kept.get();
  });
  expect_one([]() -> void* {
    static std::unique_ptr<T> kept(new (std::nothrow) T);
    return kept.get();
  });
  expect_one([]() -> void* {
    static std::unique_ptr<T[]> kept(new (std::nothrow) T[3]);
    return kept.get();
  });
}

TEST(AllocationCount, EveryFormIsCounted) {
  expect_every_form_is_counted<int>();
  expect_every_form_is_counted<CacheLine>();
}

}  // namespace
}  // namespace llm_dist
