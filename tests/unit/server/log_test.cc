// SPDX-License-Identifier: Apache-2.0
#include "server/log.h"

#include <gtest/gtest.h>

#include <string>

namespace rivulet {
namespace {

TEST(LogTest, ALineIsOneJsonObject) {
  EXPECT_EQ(FormatLogLine(
                "T", LogLevel::kWarning, "slow_reader",
                {{"text", "a\"b\n\xff"}, {"count", int64_t{3}}, {"share", 0.5}, {"good", true}}),
            "{\"ts\":\"T\",\"level\":\"warning\",\"event\":\"slow_reader\",\"text\":"
            "\"a\\\"b\\n\xEF\xBF\xBD\","
            "\"count\":3,\"share\":0.5,\"good\":true}");
}

TEST(LogTest, HeldLinesAppearOnceServingAndNotAfterAFailure) {
  ::testing::internal::CaptureStderr();
  Log(LogLevel::kInfo, "before_any_mode");
  SetLogMode(LogMode::kHeld);
  Log(LogLevel::kInfo, "dropped");
  SetLogMode(LogMode::kOff);
  SetLogMode(LogMode::kHeld);
  Log(LogLevel::kInfo, "kept");
  SetLogMode(LogMode::kOn);
  Log(LogLevel::kInfo, "direct");
  SetLogMode(LogMode::kOff);
  Log(LogLevel::kInfo, "after");
  const std::string output = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(output.find("before_any_mode"), std::string::npos);
  EXPECT_EQ(output.find("dropped"), std::string::npos);
  EXPECT_EQ(output.find("after"), std::string::npos);
  EXPECT_LT(output.find("kept"), output.find("direct"));
  EXPECT_NE(output.find("direct"), std::string::npos);
}

}  // namespace
}  // namespace rivulet
