// SPDX-License-Identifier: Apache-2.0
// Looking at client sessions, and requests that are only for a session as it was last seen.
#include <gmock/gmock.h>

#include <algorithm>

#include "tests/unit/server/engine/session_fixture.h"

namespace rivulet {
namespace {

using ::testing::HasSubstr;

TEST_F(EngineSessionTest, ASessionIsLookedAtWhileARequestHasIt) {
  Start();
  const SessionRef session = Open();
  ASSERT_TRUE(Append(session, {3, 1}).ok());
  probe_->AllowRuns(1);
  ReplyCollector collector;
  ASSERT_TRUE(collector.Start(engine_.get(), SpecOf(session, 500)).ok());
  collector.WaitForTokens(1);
  std::promise<absl::StatusOr<SessionInfo>> seen;
  ASSERT_TRUE(GetSession(engine_.get(), session, absl::InfiniteFuture(), [&seen](auto info) {
                seen.set_value(std::move(info));
              }).ok());
  probe_->AllowAll();  // sessions are looked at between runs
  const absl::StatusOr<SessionInfo> busy = seen.get_future().get();
  ASSERT_TRUE(busy.ok()) << busy.status();
  EXPECT_TRUE(busy->busy);
  EXPECT_EQ(busy->idle, absl::ZeroDuration());
  EXPECT_LT(busy->position, 502);
  ASSERT_TRUE(collector.Wait().ok());
  const auto idle = Get(session);
  EXPECT_FALSE(idle->busy);
  EXPECT_EQ(idle->position, 502);
  EXPECT_EQ(idle->seed, 7u);
  Advance(5000);
  EXPECT_EQ(Get(session)->idle, absl::Seconds(5));
  ExpectAtRest();
}

TEST_F(EngineSessionTest, PagesHoldEverySessionOnceAndTheLastUsedLast) {
  Start();
  std::vector<SessionRef> sessions;
  for (int i = 0; i < 7; ++i) sessions.push_back(Open());
  Open("other");
  ASSERT_TRUE(Append(sessions[2], {1}).ok());
  std::vector<SessionId> expected;
  for (const int i : {0, 1, 3, 4, 5, 6, 2}) expected.push_back(sessions[static_cast<size_t>(i)].id);
  for (const int page_size : {1, 3, 7, 8, 0}) {
    std::vector<SessionId> listed;
    ListSpec spec{"t", page_size};
    int pages = 0;
    do {
      const auto page = List(spec);
      ASSERT_TRUE(page.ok()) << page.status();
      for (const SessionInfo& info : page->sessions) listed.push_back(info.id);
      if (page->next != 0) {
        EXPECT_EQ(std::ssize(page->sessions), page_size);
      }
      spec.after = page->next;
      ++pages;
    } while (spec.after != 0);
    EXPECT_EQ(listed, expected) << page_size;
    EXPECT_EQ(pages, page_size == 0 ? 1 : (7 + page_size - 1) / page_size) << page_size;
  }
  EXPECT_EQ(ReasonOf(List({"t", -1}).status()), "PAGE_SIZE_OUT_OF_RANGE");
  ExpectAtRest();
}

TEST_F(EngineSessionTest, ASessionThatIsUsedBetweenPagesIsNotMissed) {
  Start();
  std::vector<SessionRef> sessions;
  for (int i = 0; i < 4; ++i) sessions.push_back(Open());
  const auto first = List({"t", 2});
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(Append(sessions[0], {1}).ok());  // was listed: comes again
  ASSERT_TRUE(Append(sessions[2], {1}).ok());  // would have been next: comes later
  const auto rest = List({"t", 0, first->next});
  ASSERT_TRUE(rest.ok());
  std::vector<SessionId> listed;
  for (const SessionInfo& info : rest->sessions) listed.push_back(info.id);
  EXPECT_EQ(listed, (std::vector<SessionId>{sessions[3].id, sessions[0].id, sessions[2].id}));
}

TEST_F(EngineSessionTest, ASnapshotAtAPositionGoesOnFromThere) {
  Start();
  const SessionRef session = Open();
  SessionRef marked = session;
  marked.mark = "early";
  ASSERT_TRUE(Append(marked, {4}).ok());
  Generate(SpecOf(session, 6));
  const std::vector<int32_t> all = Alone({4}, 16);
  marked.mark = "late";
  ASSERT_TRUE(Append(marked, {}).ok());
  for (const int64_t position : {7, 6, 3, 1, 0}) {
    SessionRef at = session;
    at.position = position;
    const auto image = Await<SessionImage>([&](ImageDone done) {
      return SnapshotSession(engine_.get(), at, absl::InfiniteFuture(), std::move(done));
    });
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_EQ(image->history.size(), position);
    EXPECT_EQ(image->marks.count("early"), position >= 1 ? 1u : 0u);
    EXPECT_EQ(image->marks.count("late"), position == 7 ? 1u : 0u);
    EXPECT_LE(image->state.fed, position);  // bos and all but the last
    RestoreSpec restore;
    restore.tenant = "t";
    restore.history = image->history;
    restore.seed = image->seed;
    restore.fed = image->state.fed;
    if (image->state.state != nullptr) {
      const auto values = image->state.state->values();
      restore.state.assign(values.begin(), values.end());
    }
    const auto info = Await<SessionInfo>(
        [&](SessionDone done) { return RestoreSession(engine_.get(), restore, std::move(done)); });
    ASSERT_TRUE(info.ok());
    if (position < 1) continue;  // the prompt is not part of it
    EXPECT_EQ(Generate(SpecOf({info->id, "t", std::nullopt, ""}, 17 - position)),
              std::vector<int32_t>(all.begin() + position - 1, all.end()))
        << position;
  }
  for (const int64_t position : {-1, 8}) {
    SessionRef at = session;
    at.position = position;
    const auto image = Await<SessionImage>([&](ImageDone done) {
      return SnapshotSession(engine_.get(), at, absl::InfiniteFuture(), std::move(done));
    });
    EXPECT_EQ(ReasonOf(image.status()), "POSITION_OUT_OF_RANGE");
  }
  EXPECT_EQ(Get(session)->position, 7);
  ExpectAtRest();
}

TEST_F(EngineSessionTest, WhoSawAnotherHistoryIsRefusedBeforeItDropsAnything) {
  Start();
  const SessionRef session = Open();
  ASSERT_TRUE(Append(session, {5, 6}).ok());
  SessionRef mine = session;
  mine.position = 2;
  mine.hash = Get(session)->hash;
  const std::vector<int32_t> theirs = Generate(SpecOf(session, 8));  // somebody else
  const uint64_t now = Get(session)->hash;
  const auto expect_refused = [&](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ReasonOf(status), "SESSION_HASH_MISMATCH");
    EXPECT_EQ(GetErrorDetail(status).field, "sequence_hash");
    for (const uint64_t hash : {*mine.hash, now}) {
      EXPECT_THAT(status.message(), HasSubstr(absl::StrCat(absl::Hex(hash, absl::kZeroPad16))));
    }
  };
  expect_refused(GenerateError(SpecOf(mine, 8)));
  expect_refused(Append(mine, {9}).status());
  expect_refused(Fork(mine, 1, 1).status());
  EXPECT_EQ(Get(session)->hash, now);
  mine.hash = now;
  EXPECT_EQ(Generate(SpecOf(mine, 8)), theirs);  // as one who knows what it drops
  ExpectAtRest();
}

TEST_F(EngineSessionTest, ARepetitionIsNotTakenForSomebodyElse) {
  Start();
  const SessionRef session = Open();
  SessionRef at = session;
  at.position = 0;
  at.hash = Get(session)->hash;
  ASSERT_TRUE(Append(at, {5, 6}).ok());
  const auto again = Append(at, {5, 6});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->session->position, 2);
  EXPECT_EQ(ReasonOf(Append(at, {5}).status()), "SESSION_HASH_MISMATCH");  // less than there is
  // Of a Generate only the library's own repetition is believed.
  at.position = 2;
  at.hash = Get(session)->hash;
  const std::vector<int32_t> tokens = Generate(SpecOf(at, 4));
  EXPECT_EQ(ReasonOf(GenerateError(SpecOf(at, 4))), "SESSION_HASH_MISMATCH");
  at.repeated = true;
  EXPECT_EQ(Generate(SpecOf(at, 4)), tokens);
  at.hash = *at.hash + 1;
  EXPECT_EQ(ReasonOf(GenerateError(SpecOf(at, 4))), "SESSION_HASH_MISMATCH");
  ExpectAtRest();
}

}  // namespace
}  // namespace rivulet
