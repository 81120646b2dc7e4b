#include "parallel/arena.h"

#include <gtest/gtest.h>

#include "src/device/cpu/cpu_backend.h"

namespace llm_dist::parallel {
namespace {

constexpr ArenaRows kRows{.tokens = 16, .local_tokens = 8, .samples = 4};

TEST(Arena, TheWidestRequestUnderANameCountsAndNamesDoNotOverlap) {
  auto backend = device::make_cpu_backend({});
  Arena arena(kRows);
  Arena::Id narrow = arena.declare("a", RowKind::kTokens, 10, DType::kF32);
  Arena::Id wide = arena.declare("a", RowKind::kTokens, 30, DType::kF32);
  Arena::Id other = arena.declare("b", RowKind::kLocalTokens, 7, DType::kBF16);
  EXPECT_EQ(narrow, wide);
  ASSERT_NE(narrow, other);
  EXPECT_GE(arena.bytes(), 16 * 30 * 4 + 8 * 7 * 2);
  ASSERT_TRUE(arena.allocate(*backend).ok());

  Tensor a = arena.get(narrow, 16, 30);
  Tensor b = arena.get(other, 8, 7);
  auto begin = [](const Tensor& t) { return static_cast<std::byte*>(t.data); };
  EXPECT_TRUE(begin(b) >= begin(a) + a.bytes() || begin(a) >= begin(b) + b.bytes());
  EXPECT_EQ(b.dtype, DType::kBF16);
  EXPECT_TRUE(a.is_contiguous());
}

TEST(Arena, AddressesAreTheSameEveryStep) {
  auto backend = device::make_cpu_backend({});
  Arena arena(kRows);
  Arena::Id id = arena.declare("x", RowKind::kSamples, 5, DType::kF32);
  ASSERT_TRUE(arena.allocate(*backend).ok());
  EXPECT_EQ(arena.get(id, 4, 5).data, arena.get(id, 1, 5).data);
}

using ArenaDeathTest = testing::Test;

TEST(ArenaDeathTest, WhatWasNotPlannedIsABug) {
  auto backend = device::make_cpu_backend({});
  Arena arena(kRows);
  Arena::Id id = arena.declare("x", RowKind::kSamples, 64, DType::kF32);
  EXPECT_DEATH(arena.declare("x", RowKind::kTokens, 64, DType::kF32), "two meanings");
  ASSERT_TRUE(arena.allocate(*backend).ok());
  EXPECT_DEATH(arena.get(id, 5, 64), "planned for");
  EXPECT_DEATH(arena.declare("y", RowKind::kTokens, 1, DType::kF32), "after the arena was allocated");
}

}  // namespace
}  // namespace llm_dist::parallel
