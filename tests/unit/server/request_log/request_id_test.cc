// SPDX-License-Identifier: Apache-2.0
#include "server/request_log/request_id.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace rivulet {
namespace {

TEST(RequestIdTest, WhatProxiesSendIsAccepted) {
  for (const char* id :
       {"a", "9f6c1a52-3c1e-4d55-8f0a-0d5b5c1f7e21", "4bf92f3577b34da6a3ce929d0e0e4736",
        "Root=1-67891233-abcdef012345678912345678",
        "0AF76519:16CD_C0A80001:01BB_65A1+/==", "call/17"}) {
    EXPECT_TRUE(IsRequestId(id)) << id;
  }
  EXPECT_TRUE(IsRequestId(std::string(kMaxRequestIdBytes, 'x')));
}

TEST(RequestIdTest, WhatALogOrAProxyCouldMistakeIsNot) {
  for (const char* id : {"", " ", "two words", "a,b", "say\"so", "back\\slash", "line\nbreak",
                         "\x7f", "caf\xc3\xa9"}) {
    EXPECT_FALSE(IsRequestId(id)) << id;
  }
  EXPECT_FALSE(IsRequestId(std::string("nul\0byte", 8)));
  EXPECT_FALSE(IsRequestId(std::string(kMaxRequestIdBytes + 1, 'x')));
}

TEST(RequestIdTest, NewOnesAreDistinctRandomUuids) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = NewRequestId();
    EXPECT_THAT(id, ::testing::MatchesRegex(
                        "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"));
    EXPECT_TRUE(IsRequestId(id));
    EXPECT_TRUE(seen.insert(id).second) << id;
  }
}

}  // namespace
}  // namespace rivulet
