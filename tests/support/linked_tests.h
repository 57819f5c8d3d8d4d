// SPDX-License-Identifier: Apache-2.0
// A program that holds the tests of many files. A link to it that is called NAME or gpu_NAME runs
// the tests of NAME.cc. The program itself runs all tests. --gtest_filter overrides the choice.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace rivulet::testing {

inline absl::string_view BaseName(absl::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

// Use this in place of RUN_ALL_TESTS(), once, after InitGoogleTest(), on the main thread. `name` is
// argv[0]. Returns the exit code.
inline int RunLinkedTests(absl::string_view name) {
  name = BaseName(name);
  absl::ConsumePrefix(&name, "gpu_");
  std::string filter;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(j);
      if (BaseName(test.file()) != absl::StrCat(name, ".cc")) continue;
      absl::StrAppend(&filter, suite.name(), ".", test.name(), ":");
    }
  }
  if (!filter.empty() && GTEST_FLAG_GET(filter) == "*") GTEST_FLAG_SET(filter, filter);
  return RUN_ALL_TESTS();
}

}  // namespace rivulet::testing
