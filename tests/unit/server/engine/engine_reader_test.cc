// SPDX-License-Identifier: Apache-2.0
// Readers that do not read: they give their slots to others, get on where they were, and are cut
// after a while.
#include <gmock/gmock.h>

#include <deque>
#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/unit/server/engine/session_fixture.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

class ReaderTest : public EngineSessionTest {
 protected:
  ReaderTest() {
    fake_.limits.num_slots = 2;
    options_.max_pending_bytes = 40;  // ten tokens
  }

  // Starts `spec` for a reader that does not read, and waits until it is paused.
  void StartUnread(ReplyCollector* reader, const GenerateSpec& spec) {
    ASSERT_EQ(reader->Start(engine_.get(), spec), absl::OkStatus());
    AwaitPause(*reader);
  }
  void AwaitPause(const ReplyCollector& reader) {
    EXPECT_TRUE(Eventually([&] { return reader.reply().pending_bytes() > 40; }));
  }
  // Runs a request that needs every slot, so that a paused reply must give up its own.
  void TakeAllSlots() {
    ReplyCollector other;
    GenerateSpec spec = Prompt({9, 9}, 6, 99);
    spec.num_samples = fake_.limits.num_slots;
    ASSERT_EQ(other.Start(engine_.get(), spec), absl::OkStatus());
    EXPECT_EQ(other.Wait(), absl::OkStatus());
    for (int i = 0; i < spec.num_samples; ++i) {
      EXPECT_EQ(other.sample(static_cast<size_t>(i)).tokens, Solo(spec, static_cast<uint32_t>(i)));
    }
  }
  // How many of two that are not read give their slots to two others.
  void ExpectParkedOfTwo(int parked) {
    Start();
    ReplyCollector first(ReplyCollector::Reading::kOnlyWhenAsked);
    ReplyCollector second(ReplyCollector::Reading::kOnlyWhenAsked);
    StartUnread(&first, Prompt({1}, 100));
    StartUnread(&second, Prompt({2}, 100));
    ReplyCollector others[2];
    probe_->AllowRuns(0);  // so that the first does not end before the second waits
    for (ReplyCollector& other : others) {
      ASSERT_EQ(other.Start(engine_.get(), Prompt({3}, 30)), absl::OkStatus());
    }
    probe_->AllowAll();
    for (ReplyCollector& other : others) EXPECT_EQ(other.Wait(), absl::OkStatus());
    EXPECT_EQ(Load().parked, parked);
    EXPECT_EQ(Load().slots_used, 2 - parked);
    engine_.reset();
  }
  static void ReadToTheEnd(ReplyCollector* reader) {
    EXPECT_TRUE(Eventually([&] {
      reader->TakeNow();
      return reader->reply().end().has_value();
    }));
  }
  EngineLoad Load() const { return engine_->GetLoad(); }
};

TEST_F(ReaderTest, GivesItsSlotsToThoseWhoWaitAndGoesOnBitForBit) {
  Start();
  ReplyCollector slow(ReplyCollector::Reading::kOnlyWhenAsked);
  GenerateSpec spec = Prompt({1, 2, 3}, 200);
  spec.num_samples = 2;
  StartUnread(&slow, spec);
  EXPECT_EQ(Load().parked, 0) << "while nobody waits it keeps them";
  TakeAllSlots();
  EXPECT_EQ(Load().parked, 2);
  EXPECT_EQ(Load().slots_used, 0);
  for (int i = 0; i < 5; ++i) {
    slow.TakeNow();
    AwaitPause(slow);
    EXPECT_EQ(Load().parked, 0);
    TakeAllSlots();
  }
  ReadToTheEnd(&slow);
  EXPECT_EQ(slow.Wait(), absl::OkStatus());
  EXPECT_EQ(slow.violation(), "");
  EXPECT_EQ(slow.sample(0).tokens, Solo(spec, 0));
  EXPECT_EQ(slow.sample(1).tokens, Solo(spec, 1));
  EXPECT_EQ(slow.usage().completion_tokens, 400);
  ExpectAtRest();
}

TEST_F(ReaderTest, OnlyAsManyGiveUpTheirSlotsAsAreNeeded) {
  fake_.limits.num_slots = 4;
  Start();
  std::deque<ReplyCollector> slow;
  for (int i = 0; i < 4; ++i) {
    slow.emplace_back(ReplyCollector::Reading::kOnlyWhenAsked);
    StartUnread(&slow.back(), Prompt({i}, 100));
  }
  ReplyCollector other;
  ASSERT_EQ(other.Start(engine_.get(), Prompt({7}, 3)), absl::OkStatus());
  EXPECT_EQ(other.Wait(), absl::OkStatus());
  EXPECT_EQ(Load().parked, 1);
  EXPECT_EQ(Load().slots_used, 3);
  for (ReplyCollector& reader : slow) {
    ReadToTheEnd(&reader);
    EXPECT_EQ(reader.Wait(), absl::OkStatus());
  }
  ExpectAtRest();
}

TEST_F(ReaderTest, KeepsItsSlotWhereThereIsNoMemoryForItsState) {
  options_.max_host_bytes = 5 * 64;  // of one state, beside those kept for preemption
  ExpectParkedOfTwo(1);
}

TEST_F(ReaderTest, MoreStatesThatAreSmallStillHaveRoom) {
  const StateSize size = {
      .fixed = kFakeStateBytes, .per_block = 8, .block_tokens = 2, .segment_tokens = 4};
  fake_.limits.state = size;
  fake_.limits.bytes_per_slot = size.At(1000);
  options_.max_host_bytes = 5 * static_cast<int64_t>(size.At(1000));  // as above
  ExpectParkedOfTwo(2);
}

TEST_F(ReaderTest, ComesBackBeforeRequestsThatCameLater) {
  fake_.limits.num_slots = 1;
  Start();
  ReplyCollector slow(ReplyCollector::Reading::kOnlyWhenAsked), running, later;
  StartUnread(&slow, Prompt({1}, 12));
  const int64_t runs = probe_->num_runs();
  probe_->AllowRuns(1);
  ASSERT_EQ(running.Start(engine_.get(), Prompt({2}, 5)), absl::OkStatus());
  EXPECT_TRUE(Eventually([&] { return probe_->num_runs() == runs + 2; })) << "the second is held";
  clock_ms_ += 30'000;
  ASSERT_EQ(later.Start(engine_.get(), Prompt({3, 3, 3}, 1)), absl::OkStatus());
  slow.TakeNow();
  probe_->AllowRuns(2);
  EXPECT_TRUE(Eventually([&] { return Load().queued_by_priority[1] == 2; }));
  EXPECT_EQ(Load().oldest_wait, absl::ZeroDuration()) << "it waits since it was read";
  probe_->AllowAll();
  EXPECT_EQ(later.Wait(), absl::OkStatus());
  EXPECT_TRUE(slow.reply().end()) << "one more token was left to draw";
  EXPECT_EQ(slow.Wait(), absl::OkStatus());
  ExpectAtRest();
}

TEST_F(ReaderTest, IsCutWhenItHasNotReadForTooLong) {
  options_.reader_timeout = absl::Seconds(10);
  Start();
  for (const bool parked : {false, true}) {
    ReplyCollector slow(ReplyCollector::Reading::kOnlyWhenAsked);
    GenerateSpec spec = Prompt({1}, 500);
    spec.num_samples = 2;
    StartUnread(&slow, spec);
    if (parked) TakeAllSlots();
    Advance(9'000);
    slow.TakeNow();  // in time: it counts anew
    AwaitPause(slow);
    if (parked) TakeAllSlots();
    EXPECT_EQ(Load().parked, parked ? 2 : 0);
    Advance(9'999);
    EXPECT_FALSE(slow.reply().end());
    Advance(1);
    const absl::Status status = slow.Wait();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(ReasonOf(status), "READER_TOO_SLOW");
    const size_t sent = slow.sample(0).tokens.size();
    EXPECT_EQ(slow.sample(1).tokens.size(), sent);
    EXPECT_THAT(GetErrorDetail(status).metadata,
                ElementsAre(Pair("sent_tokens", absl::StrCat(sent, ",", sent))));
    ExpectAtRest();
    EXPECT_EQ(Load().unread_replies_ended, parked ? 2 : 1);
    EXPECT_EQ(Load().parked, 0);
  }
}

TEST_F(ReaderTest, WithoutATimeoutNobodyIsCut) {
  options_.reader_timeout = absl::InfiniteDuration();
  Start();
  ReplyCollector slow(ReplyCollector::Reading::kOnlyWhenAsked);
  StartUnread(&slow, Prompt({1}, 500));
  Advance(int64_t{1'000'000'000});
  TakeAllSlots();
  EXPECT_FALSE(slow.reply().end());
  engine_.reset();
}

TEST_F(ReaderTest, ASessionThatIsCutGoesOnWhereItSaysWithTheStateThatItHad) {
  options_.reader_timeout = absl::Seconds(10);
  Start();
  const SessionRef session = Open();
  ReplyCollector slow(ReplyCollector::Reading::kOnlyWhenAsked);
  StartUnread(&slow, SpecOf(session, 300, {1, 2, 3}));
  TakeAllSlots();
  Advance(10'000);
  const absl::Status status = slow.Wait();
  EXPECT_EQ(ReasonOf(status), "READER_TOO_SLOW");
  const std::vector<int32_t> sent = slow.sample().tokens;
  EXPECT_THAT(GetErrorDetail(status).metadata,
              ElementsAre(Pair("session_id", session.id.ToString()),
                          Pair("session_position", absl::StrCat(3 + sent.size()))));
  const size_t runs = probe_->runs().size();
  EXPECT_EQ(Join(sent, Generate(SpecOf(session, 20))),
            Alone({1, 2, 3}, static_cast<int64_t>(sent.size()) + 20));
  EXPECT_EQ(probe_->runs()[runs].rows[0].tokens, 1) << "nothing was fed twice";
  ExpectAtRest();
}

TEST_F(ReaderTest, ADrainSaysUpToWhereTokensWereSentAndSessionsAreCarriedAwayMeanwhile) {
  Start();
  const SessionRef session = Open(), other = Open();
  probe_->AllowRuns(3);
  ReplyCollector running, alone;
  ASSERT_EQ(running.Start(engine_.get(), SpecOf(session, 500, {4, 5})), absl::OkStatus());
  running.WaitForTokens(3);
  ASSERT_EQ(alone.Start(engine_.get(), Prompt({6}, 500)), absl::OkStatus());
  std::thread drain([&] { engine_->Drain(absl::FromUnixMillis(clock_ms_ + 50)); });
  EXPECT_TRUE(Eventually([&] { return Load().draining; }));
  EXPECT_EQ(ReasonOf(GenerateError(Prompt({}, 1))), "DRAINING");
  EXPECT_EQ(ReasonOf(Append(session, {1}).status()), "DRAINING");
  // Waits for the reply that is running on the session, and is waited for.
  std::promise<absl::StatusOr<SessionImage>> snapshot;
  ASSERT_TRUE(SnapshotSession(
                  engine_.get(), session, absl::InfiniteFuture(),
                  [&](absl::StatusOr<SessionImage> image) { snapshot.set_value(std::move(image)); })
                  .ok());
  std::promise<absl::Status> closed;
  ASSERT_TRUE(CloseSession(engine_.get(), other, [&](const absl::Status& status) {
                closed.set_value(status);
              }).ok());
  std::promise<size_t> listed;
  ASSERT_TRUE(ListSessions(engine_.get(), {"t"}, [&](const absl::StatusOr<SessionPage>& page) {
                listed.set_value(page->sessions.size());
              }).ok());
  engine_->Cancel(running.id());
  probe_->AllowRuns(40);
  EXPECT_EQ(running.Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(closed.get_future().get().ok());
  EXPECT_EQ(listed.get_future().get(), 1u);
  const absl::StatusOr<SessionImage> image = snapshot.get_future().get();
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(image->history.size(), 2 + static_cast<int64_t>(running.sample().tokens.size()));
  clock_ms_ += 50;
  EXPECT_TRUE(Eventually([&] {
    const auto late = SnapshotSession(engine_.get(), session, absl::InfiniteFuture(),
                                      [](const absl::StatusOr<SessionImage>&) {});
    return ReasonOf(late.status()) == "DRAINING";
  })) << "past the deadline";
  probe_->AllowAll();
  drain.join();
  const absl::Status status = alone.Wait();
  EXPECT_EQ(ReasonOf(status), "DRAINING");
  EXPECT_THAT(GetErrorDetail(status).metadata,
              ElementsAre(Pair("sent_tokens", absl::StrCat(alone.sample().tokens.size()))));
}

}  // namespace
}  // namespace rivulet
