// SPDX-License-Identifier: Apache-2.0
#include "server/base/memory_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/base/error.h"

namespace rivulet {
namespace {

using ::testing::HasSubstr;

// How many pieces of `bytes` a tenant gets until it is refused.
int TakeAll(MemoryShares* budget, const std::string& tenant, int64_t bytes) {
  int taken = 0;
  while (budget->Take(tenant, bytes).ok()) ++taken;
  return taken;
}

TEST(MemorySharesTest, NoTenantTakesTheRoomOfTheOthers) {
  MemoryShares budget(800, "RESTORE_MEMORY", "snapshots");
  EXPECT_EQ(TakeAll(&budget, "a", 1), 700);
  EXPECT_EQ(TakeAll(&budget, "b", 1), 88);
  EXPECT_EQ(TakeAll(&budget, "c", 1), 11);
  const absl::Status of_its_share = budget.Take("a", 1);
  EXPECT_EQ(of_its_share.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetail(of_its_share).reason, "RESTORE_MEMORY");
  EXPECT_GT(GetErrorDetail(of_its_share).retry_after, absl::ZeroDuration());
  EXPECT_THAT(std::string(of_its_share.message()), HasSubstr("this tenant's snapshots hold 700"));
  const absl::Status of_all = budget.Take("d", 100);
  EXPECT_EQ(GetErrorDetail(of_all).reason, "RESTORE_MEMORY");
  EXPECT_THAT(std::string(of_all.message()), HasSubstr("all together may hold 800"));
}

TEST(MemorySharesTest, WhatIsGivenBackMayBeTakenAgain) {
  MemoryShares budget(int64_t{800} << 20, "RESTORE_MEMORY", "snapshots");
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(budget.Take("a", int64_t{400} << 20).ok());
    ASSERT_TRUE(budget.Take("a", int64_t{300} << 20).ok());
    EXPECT_FALSE(budget.Take("a", 1).ok());
    EXPECT_FALSE(budget.Take("b", int64_t{101} << 20).ok());
    ASSERT_TRUE(budget.Take("b", int64_t{80} << 20).ok());
    budget.Give("a", int64_t{700} << 20);
    budget.Give("b", int64_t{80} << 20);
  }
}

}  // namespace
}  // namespace rivulet
