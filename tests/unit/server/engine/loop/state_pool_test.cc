// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/state_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace rivulet {
namespace {

TEST(StatePoolTest, HandsOutEverySlotButTheGuardOnce) {
  StatePool pool(3);
  EXPECT_EQ(pool.capacity(), 3);
  EXPECT_EQ(pool.Take(), 1);
  EXPECT_EQ(pool.Take(), 2);
  EXPECT_EQ(pool.Take(), 3);
  EXPECT_EQ(pool.Take(), kGuardSlot);
  EXPECT_EQ(pool.used(), 3);
  EXPECT_EQ(pool.free(), 0);
}

TEST(StatePoolTest, ReusesTheSlotFreedLastFirst) {
  StatePool pool(4);
  for (int i = 0; i < 4; ++i) pool.Take();
  pool.Give(3);
  pool.Give(1);
  pool.Give(4);
  EXPECT_EQ(pool.Take(), 4);
  pool.Give(2);
  EXPECT_EQ(pool.Take(), 2);
  EXPECT_EQ(pool.Take(), 1);
  EXPECT_EQ(pool.Take(), 3);
}

TEST(StatePoolTest, ALoneUserTouchesOneSlot) {
  StatePool pool(256);
  for (int i = 0; i < 1000; ++i) {
    const Slot slot = pool.Take();
    ASSERT_EQ(slot, 1);
    pool.Give(slot);
  }
}

TEST(StatePoolTest, AnEmptyPoolHasOnlyTheGuard) {
  StatePool pool(0);
  EXPECT_EQ(pool.capacity(), 0);
  EXPECT_EQ(pool.Take(), kGuardSlot);
}

TEST(StatePoolTest, AgreesWithAStackOverRandomOperations) {
  std::mt19937_64 random(1);
  for (int num_slots = 1; num_slots <= 9; ++num_slots) {
    StatePool pool(num_slots);
    std::vector<Slot> free, used;
    for (Slot slot = num_slots; slot >= 1; --slot) free.push_back(slot);
    for (int i = 0; i < 5000; ++i) {
      if (random() % 2 == 0) {
        const Slot slot = pool.Take();
        if (free.empty()) {
          ASSERT_EQ(slot, kGuardSlot);
        } else {
          ASSERT_NE(slot, kGuardSlot);
          ASSERT_EQ(slot, free.back());
          free.pop_back();
          used.push_back(slot);
        }
      } else if (!used.empty()) {
        const size_t which = random() % used.size();
        pool.Give(used[which]);
        free.push_back(used[which]);
        used.erase(used.begin() + static_cast<std::ptrdiff_t>(which));
      }
      ASSERT_EQ(pool.used(), static_cast<int>(used.size()));
      ASSERT_EQ(pool.free() + pool.used(), pool.capacity());
    }
  }
}

TEST(StatePoolDeathTest, EndsTheProcessRatherThanShareASlot) {
  StatePool pool(2);
  const Slot slot = pool.Take();
  pool.Give(slot);
  EXPECT_DEATH(pool.Give(slot), "a free slot is given back");
  EXPECT_DEATH(pool.Give(kGuardSlot), "does not exist");
  EXPECT_DEATH(pool.Give(3), "does not exist");
  EXPECT_DEATH(StatePool(-1), "negative");
}

}  // namespace
}  // namespace rivulet
