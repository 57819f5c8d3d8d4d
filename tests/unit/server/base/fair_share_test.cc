// SPDX-License-Identifier: Apache-2.0
#include "server/base/fair_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace rivulet {
namespace {

TEST(FairShareTest, ALoneTenantGetsSevenEighths) {
  EXPECT_EQ(MostFor(10000, 0, 0), 8750);
  EXPECT_EQ(MostFor(10000, 8749, 8749), 8750);
  EXPECT_EQ(MostFor(10000, 8750, 8750), 8750);
  EXPECT_EQ(MostFor(8, 0, 0), 7);
}

TEST(FairShareTest, SmallTotalsAreUsableAndZeroIsZero) {
  EXPECT_EQ(MostFor(0, 0, 0), 0);
  EXPECT_EQ(MostFor(1, 0, 0), 1);
  EXPECT_EQ(MostFor(2, 0, 0), 2);
  EXPECT_EQ(MostFor(2, 1, 0), 1);
  EXPECT_EQ(MostFor(2, 2, 0), 0);
}

TEST(FairShareTest, IsTheMostThatTakingOneByOneReaches) {
  for (int64_t total = 0; total <= 40; ++total) {
    for (int64_t others = 0; others <= total; ++others) {
      for (int64_t own = 0; own + others <= total; ++own) {
        int64_t taken = own;
        while (taken < 7 * (total - others - taken)) ++taken;
        EXPECT_EQ(MostFor(total, others + own, own), taken)
            << total << " places, others hold " << others << ", the tenant " << own;
      }
    }
  }
}

// Where k tenants take in turn all that they can get, total / (7k + 1) places are left.
TEST(FairShareTest, GreedyTenantsLeaveRoomForOneThatHasNothing) {
  constexpr int64_t kTotal = 10000;
  for (const size_t tenants : {1U, 2U, 3U, 7U, 100U, 1000U}) {
    std::vector<int64_t> own(tenants);
    for (bool more = true; more;) {
      more = false;
      for (int64_t& mine : own) {
        const int64_t all = std::accumulate(own.begin(), own.end(), int64_t{0});
        if (MostFor(kTotal, all, mine) <= mine) continue;
        ++mine;
        more = true;
      }
    }
    const int64_t all = std::accumulate(own.begin(), own.end(), int64_t{0});
    EXPECT_LE(all, kTotal);
    EXPECT_GE(MostFor(kTotal, all, 0), 1) << tenants << " greedy tenants hold " << all;
    const auto [least, most] = std::minmax_element(own.begin(), own.end());
    EXPECT_LE(*most - *least, 7) << tenants;
  }
}

TEST(FairShareTest, WhoHoldsMoreThanItsShareKeepsIt) {
  EXPECT_EQ(MostFor(100, 100, 90), 90);
  EXPECT_EQ(MostFor(100, 99, 90), 90);
}

}  // namespace
}  // namespace rivulet
