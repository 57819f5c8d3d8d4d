// SPDX-License-Identifier: Apache-2.0
// Ends that nobody wished for: cancel, deadline, failed backend, drain, shutdown.
#include <gmock/gmock.h>

#include <chrono>
#include <future>
#include <thread>

#include "model/base/error.h"
#include "server/engine/loop/request_queue.h"
#include "tests/unit/server/engine/engine_fixture.h"

namespace rivulet {
namespace {

class EndTest : public EngineTest {
 protected:
  static std::string Reason(const absl::Status& status) { return GetErrorDetail(status).reason; }

  // The collected tokens are the beginning of what the model draws.
  void ExpectPrefix(const ReplyCollector& collector, const GenerateSpec& spec) {
    EXPECT_EQ(collector.violation(), "");
    for (uint32_t s = 0; s < static_cast<uint32_t>(spec.num_samples); ++s) {
      const std::vector<int32_t> want = Solo(spec, s);
      const std::vector<int32_t>& got = collector.sample(s).tokens;
      ASSERT_LE(got.size(), want.size());
      EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin()));
    }
  }
};

TEST_F(EndTest, ARequestThatExpiresInTheQueueHasWaitedUntilThen) {
  fake_.limits.num_slots = 1;
  Start();
  probe_->AllowRuns(1);
  ReplyCollector running, queued;
  ASSERT_EQ(running.Start(engine_.get(), Prompt({}, 3)), absl::OkStatus());
  running.WaitForTokens(1);
  GenerateSpec spec = Prompt({}, 1000);
  spec.deadline = absl::FromUnixMillis(clock_ms_ + 4000);
  ASSERT_EQ(queued.Start(engine_.get(), spec), absl::OkStatus());
  Advance(4500);
  probe_->AllowAll();
  EXPECT_EQ(Reason(queued.Wait()), "DEADLINE_EXCEEDED");
  EXPECT_EQ(queued.usage().queue_time, absl::Milliseconds(4500));
  EXPECT_EQ(running.Wait(), absl::OkStatus());
  ExpectAtRest();
}

TEST_F(EndTest, ADeadlineWakesAnEngineThatSleeps) {
  options_.max_pending_bytes = 8;
  Start();
  GenerateSpec spec = Prompt({}, 1000);
  spec.deadline = absl::FromUnixMillis(clock_ms_ + 30);
  ReplyCollector collector(ReplyCollector::Reading::kOnlyWhenAsked);
  ASSERT_EQ(collector.Start(engine_.get(), spec), absl::OkStatus());
  EXPECT_TRUE(Eventually([&] { return collector.reply().pending_bytes() > 8; }));
  clock_ms_ += 40;  // nobody calls the engine
  EXPECT_EQ(collector.Wait().code(), absl::StatusCode::kDeadlineExceeded);
  ExpectPrefix(collector, spec);
}

TEST_F(EndTest, WhatFailedInTheBackendIsToldToOperatorsAlone) {
  fake_.fail_at_call = 10;
  Start();
  ReplyCollector running, late;
  ASSERT_EQ(running.Start(engine_.get(), Prompt({1, 2, 3}, 60)), absl::OkStatus());
  const absl::Status ended = running.Wait();
  EXPECT_TRUE(Eventually([&] { return !engine_->GetLoad().health.ok(); }));
  for (const absl::Status& status : {ended, late.Start(engine_.get(), Prompt({1}, 6))}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(Reason(status), "BACKEND_FAILED");
    EXPECT_THAT(std::string(status.message()), ::testing::Not(::testing::HasSubstr("fake device")));
  }
  EXPECT_THAT(std::string(engine_->GetLoad().health.message()),
              ::testing::HasSubstr("fake device"));
}

TEST_F(EndTest, DrainRefusesNewRequestsAndLetsRunningOnesEnd) {
  Start();
  probe_->AllowRuns(1);
  const GenerateSpec spec = Prompt({}, 20);
  ReplyCollector collector;
  ASSERT_EQ(collector.Start(engine_.get(), spec), absl::OkStatus());
  collector.WaitForTokens(1);
  bool all_ended = false;
  std::thread drain([&] { all_ended = engine_->Drain(absl::InfiniteFuture()); });
  EXPECT_TRUE(Eventually([&] { return engine_->GetLoad().draining; }));
  ReplyCollector refused;
  const absl::Status status = refused.Start(engine_.get(), spec);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Reason(status), "DRAINING");
  EXPECT_EQ(Reason(engine_->Score(ScoreSpec(), [](absl::StatusOr<ScoreResult>) {}).status()),
            "DRAINING");
  probe_->AllowAll();
  drain.join();
  EXPECT_TRUE(all_ended);
  EXPECT_TRUE(collector.reply().end().has_value()) << "told before Drain returns";
  EXPECT_EQ(collector.Wait(), absl::OkStatus());
  EXPECT_EQ(collector.sample().tokens, Solo(spec));
  ExpectAtRest();
  EXPECT_TRUE(engine_->Drain(absl::InfinitePast())) << "again: nothing is left";
}

TEST(DrainTest, WaitsUntilTheLoopHasSavedItsSessions) {
  QueueLimits limits;
  limits.saves = true;
  RequestQueue queue(limits, [] { return absl::FromUnixSeconds(1); });
  std::future<bool> drain =
      std::async(std::launch::async, [&] { return queue.Drain(absl::InfiniteFuture()); });
  EngineLoad load;
  std::vector<RequestQueue::Ended> ended;
  RequestQueue::Arrivals arrivals;
  while (!arrivals.draining) queue.Exchange(absl::FromUnixSeconds(1), load, &ended, &arrivals);
  load.unsaved = 1;
  queue.Note(absl::FromUnixSeconds(1), load, &ended);
  EXPECT_EQ(drain.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  load.unsaved = 0;
  queue.Note(absl::FromUnixSeconds(1), load, &ended);
  EXPECT_TRUE(drain.get());
  load.unsaved = 1;
  queue.Note(absl::FromUnixSeconds(1), load, &ended);
  EXPECT_TRUE(queue.Drain(absl::InfinitePast())) << "a second one does not wait again";
}

TEST_F(EndTest, OfTwoDrainsTheEarlierDeadlineCounts) {
  Start();
  probe_->AllowRuns(1);
  ReplyCollector running;
  ASSERT_EQ(running.Start(engine_.get(), Prompt({}, 1'000'000)), absl::OkStatus());
  running.WaitForTokens(1);
  bool all_ended = true;
  std::thread patient([&] { all_ended = engine_->Drain(absl::InfiniteFuture()); });
  EXPECT_TRUE(Eventually([&] { return engine_->GetLoad().draining; }));
  probe_->AllowAll();
  EXPECT_FALSE(engine_->Drain(absl::InfinitePast()));
  patient.join();
  EXPECT_FALSE(all_ended) << "the other one ended it";
  EXPECT_EQ(Reason(running.Wait()), "DRAINING");
  ExpectAtRest();
}

TEST_F(EndTest, AReplyOutlivesItsEngine) {
  Start();
  ReplyCollector collector(ReplyCollector::Reading::kOnlyWhenAsked);
  options_.max_pending_bytes = 4;
  ASSERT_EQ(collector.Start(engine_.get(), Prompt({}, 5000)), absl::OkStatus());
  EXPECT_TRUE(Eventually([&] { return collector.reply().pending_bytes() > 4; }));
  engine_.reset();
  collector.TakeNow();  // would wake the engine if it were there
  EXPECT_EQ(Reason(collector.Wait()), "SHUTDOWN");
}

}  // namespace
}  // namespace rivulet
