// SPDX-License-Identifier: Apache-2.0
#include "server/base/error_reasons.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"

namespace rivulet {
namespace {

TEST(ErrorReasonsTest, AreInTheOrderOfTheirNamesEachOnce) {
  absl::string_view last;
  for (const ErrorReason& reason : ErrorReasons()) {
    EXPECT_LT(last, reason.name);
    EXPECT_TRUE(absl::EndsWith(reason.sentence, ".")) << reason.name;
    last = reason.name;
  }
}

TEST(ErrorReasonsTest, HaveTheirCodes) {
  for (const ErrorReason& reason : ErrorReasons()) {
    EXPECT_TRUE(IsErrorReason(reason.name, reason.code)) << reason.name;
    const auto other = reason.code == absl::StatusCode::kUnknown ? absl::StatusCode::kInternal
                                                                 : absl::StatusCode::kUnknown;
    EXPECT_EQ(IsErrorReason(reason.name, other), reason.scope == ReasonScope::kStart)
        << reason.name;
  }
}

TEST(ErrorReasonsTest, AnErrorWithoutAReasonHasTheNameOfItsCode) {
  EXPECT_TRUE(IsErrorReason("INTERNAL", absl::StatusCode::kInternal));
  EXPECT_FALSE(IsErrorReason("INTERNAL", absl::StatusCode::kUnavailable));
  EXPECT_FALSE(IsErrorReason("TOP_P", absl::StatusCode::kInvalidArgument));
  EXPECT_FALSE(IsErrorReason("", absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace rivulet
