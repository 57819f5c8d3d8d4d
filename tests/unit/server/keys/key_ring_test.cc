// SPDX-License-Identifier: Apache-2.0
#include "server/keys/key_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/time/clock.h"
#include "model/base/error.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

using ::testing::HasSubstr;

class KeyRingTest : public ::testing::Test {
 protected:
  // As programs do that replace a file: another one with its name.
  void Write(const std::string& text) {
    const std::string fresh = path_ + ".new";
    std::ofstream(fresh) << text;
    std::filesystem::rename(fresh, path_);
  }
  static ApiKey KeyOf(const std::string& name) {
    ApiKey key;
    key.name = key.tenant = name;
    key.hash = HashOf("key of " + name);
    return key;
  }
  bool Knows(KeyRing* ring, const std::string& name) {
    const auto found = ring->Find("key of " + name);
    return found != nullptr && found->name == name;
  }

  testing::TempDir directory_;
  const std::string path_ = directory_.File("keys.json");
  absl::Time now_ = absl::Now();
};

TEST_F(KeyRingTest, FindsAKeyByWhatTheClientShows) {
  Write(KeysToJson({KeyOf("a"), KeyOf("b")}));
  const auto ring = KeyRing::Create(path_, now_);
  ASSERT_TRUE(ring.ok()) << ring.status();
  EXPECT_TRUE(Knows(ring->get(), "a"));
  EXPECT_TRUE(Knows(ring->get(), "b"));
  EXPECT_EQ((*ring)->Find("key of c"), nullptr);
  EXPECT_EQ((*ring)->Find(""), nullptr);
  EXPECT_EQ((*ring)->Find("key of a "), nullptr);
}

TEST_F(KeyRingTest, AFileThatCannotBeUsedIsNamed) {
  const auto absent = KeyRing::Create(path_, now_);
  EXPECT_EQ(absent.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(absent.status().message()), HasSubstr("keys-file " + path_));
  Write("[");
  const auto broken = KeyRing::Create(path_, now_);
  EXPECT_EQ(broken.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(broken.status().message()), HasSubstr("keys-file " + path_));
}

TEST_F(KeyRingTest, AChangedFileIsReadByALook) {
  Write(KeysToJson({KeyOf("a")}));
  const auto ring = KeyRing::Create(path_, now_);
  ASSERT_TRUE(ring.ok()) << ring.status();
  Write(KeysToJson({KeyOf("b")}));
  EXPECT_TRUE(Knows(ring->get(), "a"));
  (*ring)->Look(now_, false);
  EXPECT_FALSE(Knows(ring->get(), "a"));
  EXPECT_TRUE(Knows(ring->get(), "b"));
}

TEST_F(KeyRingTest, AChangeThatCannotBeUsedLeavesTheKeys) {
  Write(KeysToJson({KeyOf("a")}));
  const auto ring = KeyRing::Create(path_, now_);
  ASSERT_TRUE(ring.ok()) << ring.status();
  for (int i = 0; i < 2; ++i) {
    i == 0 ? Write("[{}]") : static_cast<void>(std::filesystem::remove(path_));
    (*ring)->Look(now_, false);
    EXPECT_TRUE(Knows(ring->get(), "a")) << i;
  }
  Write(KeysToJson({KeyOf("b")}));
  (*ring)->Look(now_, false);
  EXPECT_TRUE(Knows(ring->get(), "b"));
}

TEST_F(KeyRingTest, WhatAKeyHasTakenStaysTakenWhenTheFileChanges) {
  ApiKey limited = KeyOf("a");
  limited.limits.requests_per_minute = 2;
  Write(KeysToJson({limited}));
  const auto ring = KeyRing::Create(path_, now_);
  ASSERT_TRUE(ring.ok()) << ring.status();
  const auto take = [&] { return (*ring)->Find("key of a")->account->TakeRequest(now_).ok(); };
  EXPECT_TRUE(take());
  (*ring)->Look(now_, true);
  EXPECT_TRUE(take());
  EXPECT_FALSE(take());
  // The secret may change, too: the key is its name.
  limited.hash = HashOf("other key of a");
  limited.limits.requests_per_minute = 60;
  Write(KeysToJson({KeyOf("b"), limited}));
  (*ring)->Look(now_, true);
  const auto found = (*ring)->Find("other key of a");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(GetErrorDetail(found->account->TakeRequest(now_)).retry_after, absl::Seconds(1));
  Write("[{}]");
  (*ring)->Look(now_, true);
  EXPECT_FALSE(found->account->TakeRequest(now_).ok()) << "the limits stay";
  EXPECT_TRUE((*ring)->Find("key of b")->account->TakeRequest(now_).ok());
}

}  // namespace
}  // namespace rivulet
