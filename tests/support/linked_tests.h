// SPDX-License-Identifier: Apache-2.0
// A program of the tests of many files, which has a link for each of them: called NAME or gpu_NAME,
// it runs the tests of NAME.cc. Called by its own name, it runs all. --gtest_filter goes before.
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

// In place of RUN_ALL_TESTS(), once, after InitGoogleTest(). `name`: argv[0].
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
