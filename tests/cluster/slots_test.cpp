// Which slots an attempt takes, and what they are.
#include "cluster/slots.h"

#include <gtest/gtest.h>

#include "cluster/slot_resources.h"

namespace llm_dist::cluster {
namespace {

using Numbers = std::vector<int>;

Slots held(Slots slots, const Numbers& numbers) {
  slots.take(numbers);
  return slots;
}

TEST(Slots, NeighboursAreTakenTogether) {
  EXPECT_EQ(Slots(8).choose(1), Numbers{0});
  EXPECT_EQ(Slots(8).choose(8), (Numbers{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(held(Slots(8), {0}).choose(1), Numbers{1});
  EXPECT_EQ(held(Slots(8), {0}).choose(2), (Numbers{2, 3})) << "a pair, not what is left of one";
  EXPECT_EQ(held(Slots(8), {1}).choose(4), (Numbers{4, 5, 6, 7}));
  EXPECT_EQ(held(Slots(8), {0, 7}).choose(4), (Numbers{1, 2, 3, 4})) << "neighbours all the same";
  EXPECT_EQ(held(Slots(8), {0, 2, 4, 6}).choose(2), (Numbers{1, 3})) << "what there is";
  EXPECT_EQ(held(Slots(4), {1, 3}).choose(3), std::nullopt);
  EXPECT_EQ(Slots(4).choose(5), std::nullopt);
}

TEST(Slots, ThoseOfAnAttemptHaveDevicesOfTheirOwn) {
  const Slots shared(6, 2);  // slots 0, 2, 4 on the one, 1, 3, 5 on the other
  EXPECT_EQ(shared.most_ranks(), 2);
  EXPECT_EQ(shared.choose(2), (Numbers{0, 1}));
  EXPECT_EQ(held(shared, {0, 1}).choose(1), Numbers{2});
  EXPECT_EQ(held(shared, {0, 1, 2, 4}).choose(2), std::nullopt) << "3 and 5 are on one device";
  EXPECT_EQ(held(shared, {1, 2, 3, 4}).choose(2), (Numbers{0, 5}));
  EXPECT_EQ(shared.choose(3), std::nullopt);
}

TEST(Slots, WhatAnotherCoordinatorGaveCounts) {
  EXPECT_EQ(held(Slots(2), {5}).choose(2), std::nullopt);
  EXPECT_EQ(held(Slots(2), {5}).choose(1), Numbers{0});
}

TEST(SlotResources, SlotsShareCoresEvenly) {
  SlotResources machine{.num_slots = 3, .cpus = {0, 1, 2, 3, 8, 9, 10, 11}};
  EXPECT_EQ(machine.cpus_of(Numbers{0}), (Numbers{0, 1}));
  EXPECT_EQ(machine.cpus_of(Numbers{1}), (Numbers{2, 3, 8}));
  EXPECT_EQ(machine.cpus_of(Numbers{2}), (Numbers{9, 10, 11}));
  EXPECT_EQ(machine.cpus_of(Numbers{0, 2}), (Numbers{0, 1, 9, 10, 11}));
  EXPECT_TRUE(machine.gpus_of(Numbers{0}).empty());
  machine.num_slots = 16;
  for (int slot = 0; slot < 16; ++slot)
    EXPECT_EQ(machine.cpus_of(Numbers{slot}), Numbers{machine.cpus[slot / 2]});
  machine.cpus.clear();
  EXPECT_TRUE(machine.cpus_of(Numbers{0}).empty());
}

TEST(SlotResources, SlotsShareGpusOnlyWhereThereAreMore) {
  using Names = std::vector<std::string>;
  SlotResources machine{.num_slots = 2, .gpus = {"2", "5", "GPU-x"}};
  EXPECT_EQ(machine.gpus_of(Numbers{0, 1}), (Names{"2", "5"}));
  EXPECT_EQ(machine.free_slots().most_ranks(), 2);
  machine.num_slots = 6;
  EXPECT_EQ(machine.gpus_of(Numbers{2, 4}), (Names{"GPU-x", "5"}));
  EXPECT_EQ(machine.free_slots().size(), 6);
  EXPECT_EQ(machine.free_slots().most_ranks(), 3);
}

}  // namespace
}  // namespace llm_dist::cluster
