// SPDX-License-Identifier: Apache-2.0
// Where the states of sessions are, in memory or in files, and how many tokens that saves. That no
// client can tell is proved by tests/simulation/.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/server/engine/session_fixture.h"

namespace rivulet {
namespace {

using Tokens = std::vector<int32_t>;

class EngineStatesTest : public EngineSessionTest {
 protected:
  // `rounds` requests on each of ten times as many sessions as there are slots, at once.
  void UseManySessions(int rounds) {
    const int count = 10 * fake_.limits.num_slots;
    std::vector<SessionRef> sessions;
    std::vector<Tokens> seen(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) sessions.push_back(Open("t", static_cast<uint64_t>(i)));
    for (int round = 0; round < rounds; ++round) {
      std::vector<std::unique_ptr<ReplyCollector>> collectors;
      for (int i = 0; i < count; ++i) {
        collectors.push_back(std::make_unique<ReplyCollector>());
        const GenerateSpec spec = SpecOf(sessions[static_cast<size_t>(i)], 4, {i, round, 1});
        ASSERT_TRUE(collectors.back()->Start(engine_.get(), spec).ok());
      }
      for (int i = 0; i < count; ++i) {
        ASSERT_TRUE(collectors[static_cast<size_t>(i)]->Wait().ok());
        Tokens& tokens = seen[static_cast<size_t>(i)];
        tokens = Join(tokens, {i, round, 1});
        const auto seed = static_cast<uint64_t>(i);
        const Tokens& drawn = collectors[static_cast<size_t>(i)]->sample().tokens;
        ASSERT_EQ(drawn, Alone(tokens, 4, seed)) << "session " << i << ", round " << round;
        tokens = Join(tokens, drawn);
      }
      // What has no room in memory is out of it, so that the next round reads it back.
      ASSERT_TRUE(Eventually([&] {
        Advance(0);  // a request that has ended gives its memory back after the loop has looked
        return engine_->GetLoad().states.memory_bytes <= options_.states.max_memory_bytes;
      }));
    }
    ExpectAtRest();
  }
};

TEST_F(EngineStatesTest, TenTimesAsManySessionsAsSlotsWorkWithoutFeedingAnythingTwice) {
  options_.states.max_memory_bytes = 5 * kFakeStateBytes;
  options_.states.max_writing_bytes = 1000 * kFakeStateBytes;
  disk_ = std::make_shared<FakeDisk>();
  Start();
  UseManySessions(/*rounds=*/4);
  // Per session and round 3 given tokens and 4 drawn ones, of which the last waits for the next.
  EXPECT_EQ(TokensFed(), 40 * (4 * 7 - 1) + 40) << "the bos, too";
  const EngineLoad load = engine_->GetLoad();
  EXPECT_EQ(load.states.forgotten, 0);
  EXPECT_GT(List({"t"})->sessions.front().state_disk_bytes, 0);
  EXPECT_GT(disk_->With([](FakeDisk& disk) { return disk.reads; }), 0);
}

TEST_F(EngineStatesTest, GoingBackInALongSequenceFeedsLittleAgain) {
  options_.sessions.checkpoint_tokens = 16;
  options_.prefill_tokens_idle = 1000;
  fake_.limits.max_tokens = 1000;
  Start();
  const SessionRef session = Open();
  const Tokens drawn = Generate(SpecOf(session, 200, {1}));
  for (const int64_t position : {190, 150, 101, 20}) {
    ASSERT_TRUE(Rewind(session, position).ok());
    const int64_t before = TokensFed();
    EXPECT_EQ(Generate(SpecOf(session, 1)), Tokens{drawn[static_cast<size_t>(position - 1)]});
    EXPECT_LE(TokensFed() - before, std::max<int64_t>(16, (200 - position) / 2) + 2) << position;
  }
  // Given tokens, likewise.
  const SessionRef given = Open();
  ASSERT_TRUE(Append(given, Tokens(300, 3)).ok());
  ASSERT_TRUE(Rewind(given, 200).ok());
  const int64_t before = TokensFed();
  EXPECT_EQ(Generate(SpecOf(given, 1)), Alone(Tokens(200, 3), 1));
  EXPECT_LE(TokensFed() - before, 60);
  ExpectAtRest();
}

TEST_F(EngineStatesTest, TokensThatAreHeldBackForAStopStringAreInNoCheckpoint) {
  config_ = FakeConfig(/*vocab_size=*/26, /*with_bos=*/false);
  tokenizer_ = *CreateCharTokenizer("abcdefghijklmnopqrstuvwxyz");
  options_.sessions.checkpoint_tokens = 1;
  fake_.script = [](uint32_t, int64_t position) { return static_cast<int32_t>(position % 26); };
  Start();
  const SessionRef session = Open(), fresh = Open();
  GenerateSpec spec = SpecOf(session, 20, {0});
  spec.stop_strings = {"fghij"};
  EXPECT_EQ(Generate(spec), (Tokens{1, 2, 3, 4}));  // after "a": "bcde"
  // A state that has seen the dropped tokens would serve from here on. What a state has seen shows
  // in the log-likelihoods, which no script sets.
  ASSERT_TRUE(Append(session, {25, 24, 23, 22, 21}).ok());
  ASSERT_TRUE(Append(fresh, {0, 1, 2, 3, 4, 25, 24, 23, 22, 21}).ok());
  const auto scored = Append(session, {7, 8}, /*score=*/true);
  const auto want = Append(fresh, {7, 8}, /*score=*/true);
  ASSERT_TRUE(scored.ok() && want.ok());
  EXPECT_EQ(scored->logprobs, want->logprobs);
  ExpectAtRest();
}

}  // namespace
}  // namespace rivulet
