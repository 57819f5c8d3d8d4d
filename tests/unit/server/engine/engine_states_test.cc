// SPDX-License-Identifier: Apache-2.0
// Where the states of sessions are: in memory, in files, nowhere. Clients see latency only.
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
  EXPECT_GT(disk_->With([](FakeDisk& disk) { return disk.reads; }), 0);
}

TEST_F(EngineStatesTest, SoTheyDoWithNoRoomForAnyState) {
  options_.states.max_memory_bytes = 0;
  Start();
  UseManySessions(/*rounds=*/3);
  EXPECT_EQ(engine_->GetLoad().states.in_memory, 0);
}

TEST_F(EngineStatesTest, AnUnreliableDiskCostsWorkButNoToken) {
  options_.states.max_memory_bytes = 2 * kFakeStateBytes;
  options_.states.max_disk_bytes = 30 * 1000;
  disk_ = std::make_shared<FakeDisk>();
  int reads = 0;
  disk_->damage = [&reads](std::string* bytes) {
    if (++reads % 3 == 0) bytes->at(bytes->size() / 2) ^= 1;
    if (reads % 3 == 1) bytes->resize(bytes->size() / 2);
  };
  Start();
  UseManySessions(/*rounds=*/3);
  disk_->With([](FakeDisk& disk) { return disk.fail_writes = true; });
  UseManySessions(/*rounds=*/2);
  EXPECT_GT(engine_->GetLoad().states.file_errors, 0);
  EXPECT_NE(engine_->GetLoad().state_file_error, "");
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

// Without threads: the test decides when the disk works.
class SteppedStatesTest : public ::testing::Test {
 protected:
  const ModelConfig config_ = FakeConfig(50, /*with_bos=*/true);
  EngineOptions options_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::shared_ptr<FakeProbe> probe_ = std::make_shared<FakeProbe>();
  std::shared_ptr<FakeDisk> disk_ = std::make_shared<FakeDisk>();
  std::shared_ptr<ManualQueue> work_ = std::make_shared<ManualQueue>();
  std::unique_ptr<SteppedEngine> engine_;
  std::vector<SessionId> opened_;

  // Room for one state in memory.
  void SetUp() override {
    options_.states.max_memory_bytes = kFakeStateBytes;
    DiskTier tier;
    tier.files = std::make_unique<FakeStateFiles>(disk_);
    tier.background = std::make_unique<ManualBackground>(work_);
    FakeBackendOptions fake;
    engine_ = CreateSteppedEngine(
        config_, nullptr, std::make_unique<FakeBackend>(config_, fake, probe_), options_,
        [this] { return now_; }, std::move(tier));
  }
  void Settle() {
    while (engine_->Turn()) {
    }
    engine_->Emit();
  }
  SessionRef Open() {
    SessionId id;
    EXPECT_TRUE(
        OpenSession(engine_.get(), {"t", 7, std::nullopt}, [&](absl::StatusOr<SessionInfo> info) {
          id = info->id;
        }).ok());
    Settle();
    return {id, "t", std::nullopt, ""};
  }
  static GenerateSpec SpecOf(const SessionRef& session, Tokens prompt, int64_t max_tokens) {
    GenerateSpec spec;
    spec.session = session;
    spec.session_seed = true;
    spec.prompt = std::move(prompt);
    spec.max_tokens = max_tokens;
    return spec;
  }
  // What a lone request would draw.
  Tokens Alone(const Tokens& prompt, int64_t max_tokens) const {
    SlotSampler sampler;
    sampler.params.seed = 7;
    Tokens feed = {*config_.bos_token_id};
    feed.insert(feed.end(), prompt.begin(), prompt.end());
    return FakeSolo(config_, nullptr, feed, sampler, max_tokens);
  }
  // A session that was given {1, 2, 3} and whose state is in a file alone.
  SessionRef OnDisk() {
    const SessionRef session = Open(), other = Open();
    for (const SessionRef& ref : {session, other}) {
      AppendSpec append;
      append.session = ref;
      append.tokens = {1, 2, 3};
      EXPECT_TRUE(engine_->Append(append, [](absl::StatusOr<ScoreResult>) {}).ok());
      Settle();
    }
    work_->RunAll();
    Settle();
    EXPECT_EQ(engine_->GetLoad().states.on_disk, 1);
    return session;
  }
};

TEST_F(SteppedStatesTest, ARequestWaitsForItsStateAndOthersGoOn) {
  const SessionRef session = OnDisk();
  ReplyCollector waiting, other;
  ASSERT_TRUE(waiting.Start(engine_.get(), SpecOf(session, {4}, 5)).ok());
  ASSERT_TRUE(other.Start(engine_.get(), SpecOf(Open(), {9}, 5)).ok());
  Settle();
  Settle();
  ASSERT_TRUE(other.Wait().ok());
  EXPECT_EQ(other.sample().tokens, Alone({9}, 5));
  EXPECT_FALSE(waiting.reply().end());
  EXPECT_EQ(engine_->GetLoad().queued, 1);
  EXPECT_EQ(engine_->GetLoad().slots_used, 0) << "who waits for a read holds no slot";
  const int64_t runs = probe_->num_runs();
  work_->RunAll();
  Settle();
  Settle();
  ASSERT_TRUE(waiting.Wait().ok());
  EXPECT_EQ(waiting.sample().tokens, Alone({1, 2, 3, 4}, 5));
  EXPECT_EQ(probe_->runs()[static_cast<size_t>(runs)].rows[0].tokens, 2) << "the rest alone";
}

TEST_F(SteppedStatesTest, ASessionTellsStatesInFilesFromThoseInMemory) {
  const SessionRef session = OnDisk();
  SessionInfo seen;
  ASSERT_TRUE(GetSession(engine_.get(), session, absl::InfiniteFuture(),
                         [&](const absl::StatusOr<SessionInfo>& info) { seen = *info; })
                  .ok());
  Settle();
  EXPECT_EQ(seen.state_bytes, 0);
  EXPECT_EQ(seen.state_disk_bytes, 64);
}

TEST_F(SteppedStatesTest, AStateThatCannotBeReadIsComputedAgain) {
  const SessionRef session = OnDisk();
  disk_->fail_reads = true;
  ReplyCollector collector;
  ASSERT_TRUE(collector.Start(engine_.get(), SpecOf(session, {4}, 5)).ok());
  Settle();
  work_->RunAll();
  Settle();
  Settle();
  ASSERT_TRUE(collector.Wait().ok());
  EXPECT_EQ(collector.sample().tokens, Alone({1, 2, 3, 4}, 5));
  EXPECT_EQ(engine_->GetLoad().states.file_errors, 1);
}

TEST_F(SteppedStatesTest, WhoWaitsForAReadCanBeCancelledAndTimesOut) {
  const SessionRef session = OnDisk();
  ReplyCollector cancelled, late, last;
  GenerateSpec spec = SpecOf(session, {4}, 5);
  ASSERT_TRUE(cancelled.Start(engine_.get(), spec).ok());
  spec.deadline = now_ + absl::Seconds(1);
  ASSERT_TRUE(late.Start(engine_.get(), spec).ok());
  Settle();
  engine_->Cancel(cancelled.id());
  Settle();
  EXPECT_TRUE(absl::IsCancelled(cancelled.Wait()));
  now_ += absl::Seconds(2);
  Settle();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.Wait()));
  spec.deadline = absl::InfiniteFuture();
  ASSERT_TRUE(last.Start(engine_.get(), spec).ok());
  Settle();
  work_->RunAll();
  Settle();
  Settle();
  ASSERT_TRUE(last.Wait().ok());
  EXPECT_EQ(last.sample().tokens, Alone({1, 2, 3, 4}, 5));
  EXPECT_EQ(probe_->dirty_slots(), 0);
}

TEST_F(SteppedStatesTest, ClosingASessionRemovesItsFileAlsoWhileItIsRead) {
  const SessionRef session = OnDisk();
  ReplyCollector collector;
  ASSERT_TRUE(collector.Start(engine_.get(), SpecOf(session, {4}, 5)).ok());
  Settle();
  absl::Status closed = absl::UnknownError("not yet");
  ASSERT_TRUE(CloseSession(engine_.get(), session, [&](absl::Status status) {
                closed = std::move(status);
              }).ok());
  Settle();
  EXPECT_TRUE(closed.ok());
  EXPECT_TRUE(absl::IsCancelled(collector.Wait()));
  work_->RunAll();
  Settle();
  EXPECT_TRUE(disk_->files.empty());
  EXPECT_EQ(engine_->GetLoad().states.disk_bytes, 0);
}

TEST_F(SteppedStatesTest, ASnapshotBringsItsStateBackFirst) {
  const SessionRef session = OnDisk();
  std::optional<SessionImage> image;
  ASSERT_TRUE(SnapshotSession(engine_.get(), session, absl::InfiniteFuture(),
                              [&](absl::StatusOr<SessionImage> got) { image = *std::move(got); })
                  .ok());
  Settle();
  EXPECT_FALSE(image);
  work_->RunAll();
  Settle();
  Settle();
  ASSERT_TRUE(image);
  EXPECT_EQ(image->state.fed, 3);
  ASSERT_NE(image->state.state, nullptr);
  EXPECT_EQ(image->state.state->bytes(), kFakeStateBytes);
}

TEST_F(SteppedStatesTest, TheEngineEndsWhileAReadIsUnderWay) {
  const SessionRef session = OnDisk();
  ReplyCollector collector;
  ASSERT_TRUE(collector.Start(engine_.get(), SpecOf(session, {4}, 5)).ok());
  Settle();
  engine_.reset();
  EXPECT_TRUE(absl::IsUnavailable(collector.Wait()));
}

}  // namespace
}  // namespace rivulet
