// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/redis/redis_reply.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace rivulet {
namespace {

using ReplyKind = RedisReply::Kind;

TEST(RedisReplyTest, CommandsAreArraysOfTexts) {
  EXPECT_EQ(FormatRedisCommand({"GET", std::string("\0\r\n", 3), ""}),
            absl::StrCat("*3\r\n$3\r\nGET\r\n$3\r\n", std::string("\0\r\n", 3), "\r\n$0\r\n\r\n"));
}

TEST(RedisReplyTest, AnswersAreCutWhereTheyEndHoweverTheyCome) {
  const std::string bytes =
      "+OK\r\n:-7\r\n$-1\r\n$5\r\na\r\nbc\r\n-ERR "
      "no\r\n*-1\r\n*0\r\n*3\r\n:1\r\n*1\r\n$1\r\nx\r\n$-1\r\n";
  for (size_t step = 1; step <= bytes.size(); ++step) {
    RedisReplyReader reader;
    std::vector<RedisReply> replies;
    for (size_t i = 0; i < bytes.size(); i += step) {
      reader.Feed(absl::string_view(bytes).substr(i, step));
      while (true) {
        auto reply = reader.Next();
        ASSERT_TRUE(reply.ok()) << reply.status();
        if (!reply->has_value()) break;
        replies.push_back(**std::move(reply));
      }
    }
    ASSERT_EQ(replies.size(), 8u);
    EXPECT_TRUE(replies[0].IsText("OK"));
    EXPECT_EQ(replies[1].kind, ReplyKind::kInteger);
    EXPECT_EQ(replies[1].integer, -7);
    EXPECT_EQ(replies[2].kind, ReplyKind::kNil);
    EXPECT_TRUE(replies[3].IsText("a\r\nbc"));
    EXPECT_TRUE(replies[4].IsError("ERR"));
    EXPECT_FALSE(replies[4].IsError("ER"));
    EXPECT_EQ(replies[5].kind, ReplyKind::kNil);
    EXPECT_EQ(replies[6].kind, ReplyKind::kArray);
    ASSERT_EQ(replies[7].elements.size(), 3u);
    EXPECT_EQ(replies[7].elements[0].integer, 1);
    ASSERT_EQ(replies[7].elements[1].elements.size(), 1u);
    EXPECT_TRUE(replies[7].elements[1].elements[0].IsText("x"));
    EXPECT_EQ(replies[7].elements[2].kind, ReplyKind::kNil);
  }
}

absl::Status Fed(const std::string& bytes) {
  RedisReplyReader::Limits limits;
  limits.text_bytes = 10;
  limits.reply_bytes = 25;
  limits.elements = 6;
  RedisReplyReader reader(limits);
  reader.Feed(bytes);
  const auto reply = reader.Next();
  return !reply.ok() ? reply.status() : absl::OkStatus();
}

TEST(RedisReplyTest, WhatIsNoAnswerOrTooLargeIsAnError) {
  for (const std::string bytes : {
           "HTTP/1.1 400\r\n",
           "\x15\x03\x03\r\n",
           ":12x\r\n",
           "$x\r\n",
           "$-2\r\n",
           "*-2\r\n",
           "#t\r\n",
           ",1.5\r\n",
           "_\r\n",
           "%1\r\n:1\r\n:2\r\n",
           ">1\r\n:1\r\n",
           "+12345678901\r\n",
           "$11\r\n12345678901\r\n",
           "*3\r\n+1234567890\r\n+1234567890\r\n+1234567890\r\n",
           "*7\r\n",
           "*4\r\n*3\r\n",
           "*2147483647\r\n",
           "*99999999999999999999\r\n",
           "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
       }) {
    EXPECT_EQ(Fed(bytes).code(), absl::StatusCode::kUnavailable) << bytes;
  }
  EXPECT_TRUE(Fed("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n").ok());
  EXPECT_TRUE(Fed("*2\r\n+1234567890\r\n+1234567890\r\n").ok());
}

TEST(RedisReplyTest, AnAnswerThatNeverEndsIsGivenUp) {
  // The beginning of an answer, and after how many KiB it is given up.
  const std::pair<const char*, size_t> answers[] = {
      {"$1000000000\r\n", 2048}, {"+", 17}, {"*1\r\n$", 17}};
  for (const auto& [begin, most] : answers) {
    RedisReplyReader::Limits limits;
    limits.text_bytes = 10;
    RedisReplyReader reader(limits);
    const std::string part(1024, '1');
    reader.Feed(begin);
    absl::Status status;
    size_t fed = 0;
    for (; status.ok() && fed < 4096; ++fed) {
      reader.Feed(part);
      status = reader.Next().status();
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << begin;
    EXPECT_LE(fed, most) << begin;
  }
}

}  // namespace
}  // namespace rivulet
