// SPDX-License-Identifier: Apache-2.0
#include "server/tracing/trace_context.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace rivulet {
namespace {

constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736", kParent[] = "00f067aa0ba902b7";

TEST(TraceContextTest, IsThatOfTheHeader) {
  for (const auto& [version, flags, rest, sampled] :
       {std::tuple("00", "01", "", true), std::tuple("00", "00", "", false),
        std::tuple("00", "ff", "", true), std::tuple("00", "fe", "", false),
        std::tuple("00", "0b", "", true), std::tuple("00", "0a", "", false),
        // Of versions to come, what is known is read.
        std::tuple("cc", "01", "", true), std::tuple("cc", "00", "-what", false)}) {
    const std::string value = absl::StrCat(version, "-", kTrace, "-", kParent, "-", flags, rest);
    const auto context = ParseTraceParent(value);
    ASSERT_TRUE(context.has_value()) << value;
    EXPECT_EQ(context->trace_id, kTrace) << value;
    EXPECT_EQ(context->parent_id, kParent) << value;
    EXPECT_EQ(context->sampled, sampled) << value;
  }
}

TEST(TraceContextTest, AMalformedHeaderIsAsGoodAsNone) {
  for (const char* value : {
           "", "00",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",     // too short
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",  // too long for its version
           "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x",   // no dash
           "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",    // no version
           "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",    // upper case
           "00-00000000000000000000000000000000-00f067aa0ba902b7-01",    // no trace
           "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",    // no parent
           "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",    // no digit
           "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",    // no dash
           "00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01",    // no dash
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7_01",    // no dash
           "0-04bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 ",   // shifted
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g",    // no flags
       }) {
    EXPECT_FALSE(ParseTraceParent(value).has_value()) << value;
  }
}

}  // namespace
}  // namespace rivulet
