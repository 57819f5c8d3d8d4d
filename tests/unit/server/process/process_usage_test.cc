// SPDX-License-Identifier: Apache-2.0
#include "server/process/process_usage.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace rivulet {
namespace {

constexpr char kProcess[] =
    "4242 (a name) S (b) R 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 7 0 1000 4096000 25 184467 1 1\n";
constexpr int64_t kBoot = 1700000000;

TEST(ProcessUsageTest, FieldsAreThoseBehindTheNameWhateverTheNameHolds) {
  const auto usage = ParseProcessUsage(kProcess, kBoot, /*ticks=*/100, /*page_bytes=*/4096);
  ASSERT_TRUE(usage.has_value());
  EXPECT_DOUBLE_EQ(usage->cpu_seconds, 3);
  EXPECT_DOUBLE_EQ(usage->start_seconds, 1700000010);
  EXPECT_EQ(usage->threads, 7);
  EXPECT_EQ(usage->virtual_bytes, 4096000);
  EXPECT_EQ(usage->resident_bytes, 25 * 4096);
}

TEST(ProcessUsageTest, WhatIsNotThereIsNotMadeUp) {
  EXPECT_FALSE(ParseProcessUsage("", kBoot, 100, 4096).has_value());
  EXPECT_FALSE(ParseProcessUsage("1 (x) S 1 2 3", kBoot, 100, 4096).has_value());
  EXPECT_FALSE(ParseProcessUsage(kProcess, kBoot, 0, 4096).has_value());
}

TEST(ProcessUsageTest, TheTimeOfBootIsALineOfItsOwn) {
  EXPECT_EQ(ParseBootTime("cpu 1 2 3\nbtime 1700000000\nprocesses 5\n"), kBoot);
  EXPECT_EQ(ParseBootTime("cpu 1 2 3\n"), std::nullopt);
  EXPECT_EQ(ParseBootTime("btime soon\n"), std::nullopt);
}

TEST(ProcessUsageTest, ReadsThisProcess) {
  const auto usage = GetProcessUsage();
  ASSERT_TRUE(usage.has_value());
  EXPECT_GE(usage->threads, 1);
  EXPECT_GT(usage->resident_bytes, 0);
  EXPECT_GE(usage->virtual_bytes, usage->resident_bytes);
  const double now = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  EXPECT_GT(usage->start_seconds, 1e9);
  EXPECT_LT(usage->start_seconds, now + 60) << "boot time is a whole second";
}

}  // namespace
}  // namespace rivulet
