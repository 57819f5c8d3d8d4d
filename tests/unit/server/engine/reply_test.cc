// SPDX-License-Identifier: Apache-2.0
#include "server/engine/reply.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rivulet {
namespace {

using ::testing::ElementsAre;

// Of a token of Delta: its id, one byte of text, its logprob, and a list with one entry.
constexpr int64_t kBytes = 4 + 1 + 4 + sizeof(std::vector<TokenLogprob>) + sizeof(TokenLogprob);

ReplyDelta Delta(int sample, int64_t first, std::vector<int32_t> tokens) {
  ReplyDelta delta;
  delta.sample_index = sample;
  delta.first_position = first;
  for (int32_t token : tokens) {
    delta.text += static_cast<char>('a' + token);
    delta.logprobs.push_back(-static_cast<float>(token));
    delta.top_logprobs.push_back({{token, -1.0f}});
  }
  delta.tokens = std::move(tokens);
  return delta;
}

TEST(ReplyTest, MergesUntakenTokensOfTheSameSample) {
  Reply reply;
  EXPECT_EQ(reply.Append(Delta(0, 0, {1})), kBytes);
  EXPECT_EQ(reply.Append(Delta(1, 0, {5})), 2 * kBytes);
  EXPECT_EQ(reply.Append(Delta(0, 1, {2, 3})), 4 * kBytes);
  const std::vector<ReplyDelta> taken = reply.Take();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].sample_index, 0);
  EXPECT_EQ(taken[0].first_position, 0);
  EXPECT_THAT(taken[0].tokens, ElementsAre(1, 2, 3));
  EXPECT_EQ(taken[0].text, "bcd");
  EXPECT_THAT(taken[0].logprobs, ElementsAre(-1, -2, -3));
  ASSERT_EQ(taken[0].top_logprobs.size(), 3u);
  EXPECT_EQ(taken[0].top_logprobs[2][0].token, 3);
  EXPECT_THAT(taken[1].tokens, ElementsAre(5));
}

TEST(ReplyTest, DoesNotMergeWithWhatWasTaken) {
  Reply reply;
  reply.Append(Delta(0, 0, {1}));
  EXPECT_EQ(reply.Take().size(), 1u);
  EXPECT_EQ(reply.pending_bytes(), 0);
  EXPECT_EQ(reply.Append(Delta(0, 1, {2})), kBytes);
  const std::vector<ReplyDelta> taken = reply.Take();
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].first_position, 1);
  EXPECT_THAT(taken[0].tokens, ElementsAre(2));
  EXPECT_TRUE(reply.Take().empty());
}

TEST(ReplyTest, KeepsTheFinishOfAMergedDelta) {
  Reply reply;
  reply.Append(Delta(0, 0, {1}));
  ReplyDelta last;
  last.finish.emplace();
  last.finish->reason = FinishReason::kStopToken;
  reply.Append(std::move(last));
  const std::vector<ReplyDelta> taken = reply.Take();
  ASSERT_EQ(taken.size(), 1u);
  ASSERT_TRUE(taken[0].finish.has_value());
  EXPECT_EQ(taken[0].finish->reason, FinishReason::kStopToken);
}

TEST(ReplyTest, FirstEndWins) {
  Reply reply;
  EXPECT_FALSE(reply.end().has_value());
  reply.Finish({absl::CancelledError("first"), {}});
  reply.Finish({absl::OkStatus(), {}});
  ASSERT_TRUE(reply.end().has_value());
  EXPECT_EQ(reply.end()->status.code(), absl::StatusCode::kCancelled);
}

TEST(ReplyTest, WakesWhenMoreThanTheLimitIsTakenUntilTheEnd) {
  Reply reply;
  int woken = 0;
  reply.SetWake(2 * kBytes, [&] { ++woken; });
  reply.Append(Delta(0, 0, {1, 2}));
  reply.Take();
  EXPECT_EQ(woken, 0);
  reply.Append(Delta(0, 2, {1, 2, 3}));
  reply.Take();
  EXPECT_EQ(woken, 1);
  reply.Append(Delta(0, 5, {1, 2, 3}));
  reply.Finish({absl::OkStatus(), {}});
  reply.Take();
  EXPECT_EQ(woken, 1);
}

}  // namespace
}  // namespace rivulet
