// SPDX-License-Identifier: Apache-2.0
#include "server/base/token_usage.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace rivulet {
namespace {

TEST(TokenUsageTest, CallersBeyondTheBoundShareOneCount) {
  TokenUsage usage;
  usage.Of("known", "k")->given = 1;
  for (size_t i = 0; i < 3 * TokenUsage::kMostCallers; ++i) {
    usage.Of(absl::StrCat("tenant-", i), "")->generated += 1;
  }
  const auto all = usage.all();
  ASSERT_EQ(all.size(), TokenUsage::kMostCallers + 1);
  EXPECT_EQ(all.front().tenant, TokenUsage::kOthers);
  EXPECT_EQ(all.front().key, TokenUsage::kOthers);
  EXPECT_EQ(all.front().generated, 2 * int64_t{TokenUsage::kMostCallers} + 1);
  // Who came before keeps its own count.
  EXPECT_EQ(usage.Of("known", "k")->given, 1);
  EXPECT_NE(usage.Of("known", "other"), usage.Of("known", "k"));
}

}  // namespace
}  // namespace rivulet
