// SPDX-License-Identifier: Apache-2.0
#include "model/base/team_size.h"

#include <gtest/gtest.h>

namespace rivulet {
namespace {

constexpr int64_t kWindow = TeamSize::kWindow;

void Calm(TeamSize& size) { size.Observe(kWindow, 0); }
void Crowded(TeamSize& size) { size.Observe(kWindow, kWindow / 2); }

// Calm windows until the team tries one thread more.
int CalmUntilATry(TeamSize& size) {
  const int before = size.threads();
  int windows = 0;
  while (size.threads() == before) {
    Calm(size);
    ++windows;
  }
  EXPECT_EQ(size.threads(), before + 1);
  return windows;
}

TEST(TeamSizeTest, KeepsAllThreadsWhileTheyHaveCores) {
  TeamSize size(4);
  for (int i = 0; i < 1000; ++i) {
    size.Observe(kWindow, kWindow / 3);  // now and then a neighbour takes a core for a moment
    ASSERT_EQ(size.threads(), 4);
  }
}

TEST(TeamSizeTest, GivesUpOneThreadAWindowAndKeepsTheLast) {
  TeamSize size(4);
  for (const int threads : {3, 2, 1, 1, 1}) {
    Crowded(size);
    EXPECT_EQ(size.threads(), threads);
  }
}

TEST(TeamSizeTest, GrowsBackOneThreadAWindow) {
  TeamSize size(4);
  for (int i = 0; i < 3; ++i) Crowded(size);
  for (const int threads : {2, 3, 4, 4}) {
    Calm(size);
    EXPECT_EQ(size.threads(), threads);
  }
}

TEST(TeamSizeTest, TriesThatFailBecomeRareAndOneThatHoldsMakesThemFrequentAgain) {
  TeamSize size(2);
  Crowded(size);
  for (const int windows : {1, 2, 4, 8, 16, 32, 50, 50}) {
    EXPECT_EQ(CalmUntilATry(size), windows);
    Crowded(size);
    EXPECT_EQ(size.threads(), 1);
  }
  EXPECT_EQ(CalmUntilATry(size), 50);
  Calm(size);  // it holds
  EXPECT_EQ(size.threads(), 2);
  Crowded(size);
  EXPECT_EQ(CalmUntilATry(size), 1);
}

TEST(TeamSizeTest, OneThreadStaysOne) {
  TeamSize size(1);
  Crowded(size);
  EXPECT_EQ(size.threads(), 1);
  Calm(size);
  EXPECT_EQ(size.threads(), 1);
}

}  // namespace
}  // namespace rivulet
