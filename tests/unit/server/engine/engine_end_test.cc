// SPDX-License-Identifier: Apache-2.0
// Ends that nobody wished for: cancel, deadline, failed backend, drain, shutdown.
#include <gmock/gmock.h>

#include <chrono>
#include <deque>
#include <future>
#include <set>

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

TEST_F(EndTest, CancelEndsARunningReplyBeforeTheNextRun) {
  Start();
  probe_->AllowRuns(3);
  const GenerateSpec spec = Prompt({4, 5}, 1000);
  ReplyCollector collector;
  ASSERT_EQ(collector.Start(engine_.get(), spec), absl::OkStatus());
  collector.WaitForTokens(3);
  EXPECT_TRUE(Eventually([&] { return probe_->num_runs() == 4; }));
  engine_->Cancel(collector.id());
  probe_->AllowAll();  // the run that is held ends, and no other begins
  const absl::Status status = collector.Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(Reason(status), "CANCELLED");
  ExpectPrefix(collector, spec);
  ExpectAtRest();
  EXPECT_EQ(probe_->num_runs(), 4);
}

TEST_F(EndTest, CancelEndsAQueuedRequestAndLetsTheNextMoveUp) {
  fake_.limits.num_slots = 1;
  Start();
  probe_->AllowRuns(0);
  std::deque<ReplyCollector> collectors(4);
  for (ReplyCollector& collector : collectors) {
    ASSERT_EQ(collector.Start(engine_.get(), Prompt({}, 2)), absl::OkStatus());
  }
  engine_->Cancel(collectors[2].id());
  engine_->Cancel(collectors[1].id());
  probe_->AllowAll();
  EXPECT_EQ(collectors[0].Wait(), absl::OkStatus());
  EXPECT_EQ(collectors[1].Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(collectors[2].Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(collectors[3].Wait(), absl::OkStatus());
  EXPECT_TRUE(collectors[1].sample().tokens.empty());
  ExpectAtRest();
}

TEST_F(EndTest, CancelOfASamplesPrefillFreesAllItsSlots) {
  options_.prefill_tokens_idle = 2;
  Start();
  probe_->AllowRuns(3);
  GenerateSpec spec = Prompt(std::vector<int32_t>(50, 3), 10);
  spec.num_samples = 4;
  ReplyCollector collector;
  ASSERT_EQ(collector.Start(engine_.get(), spec), absl::OkStatus());
  EXPECT_TRUE(Eventually([&] { return probe_->num_runs() == 4; }));
  EXPECT_EQ(engine_->GetLoad().slots_used, 4);
  engine_->Cancel(collector.id());
  probe_->AllowAll();
  EXPECT_EQ(collector.Wait().code(), absl::StatusCode::kCancelled);
  ExpectAtRest();
}

TEST_F(EndTest, CancelOfUnknownAndEndedRequestsDoesNothing) {
  Start();
  ReplyCollector first, second;
  ASSERT_EQ(first.Start(engine_.get(), Prompt({}, 2)), absl::OkStatus());
  EXPECT_EQ(first.Wait(), absl::OkStatus());
  engine_->Cancel(first.id());
  engine_->Cancel(first.id() + 1);  // not given out yet
  engine_->Cancel(~RequestId{0});
  ExpectAtRest();
  ASSERT_EQ(second.Start(engine_.get(), Prompt({}, 2)), absl::OkStatus());
  EXPECT_EQ(second.Wait(), absl::OkStatus());
  EXPECT_EQ(first.reply().end()->status, absl::OkStatus());
  EXPECT_GT(second.id(), first.id()) << "ids are not used again";
}

TEST_F(EndTest, DeadlineEndsRunningAndQueuedRequests) {
  fake_.limits.num_slots = 1;
  Start();
  probe_->AllowRuns(1);
  GenerateSpec spec = Prompt({}, 1000);
  spec.deadline = absl::FromUnixMillis(clock_ms_ + 5000);
  ReplyCollector running, queued, patient;
  ASSERT_EQ(running.Start(engine_.get(), spec), absl::OkStatus());
  running.WaitForTokens(1);
  spec.deadline = absl::FromUnixMillis(clock_ms_ + 4000);
  ASSERT_EQ(queued.Start(engine_.get(), spec), absl::OkStatus());
  const GenerateSpec without = Prompt({}, 3);
  ASSERT_EQ(patient.Start(engine_.get(), without), absl::OkStatus());
  Advance(4500);
  probe_->AllowRuns(1);
  absl::Status status = queued.Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Reason(status), "DEADLINE_EXCEEDED");
  EXPECT_EQ(queued.usage().queue_time, absl::Milliseconds(4500));
  EXPECT_FALSE(running.reply().end().has_value());
  Advance(500);
  probe_->AllowAll();
  EXPECT_EQ(running.Wait().code(), absl::StatusCode::kDeadlineExceeded);
  ExpectPrefix(running, spec);
  EXPECT_EQ(patient.Wait(), absl::OkStatus());
  EXPECT_EQ(patient.sample().tokens, Solo(without));
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

TEST_F(EndTest, ADeadlineThatIsNearMakesRunsShort) {
  fake_.limits.max_steps = fake_.limits.preferred_steps = 8;
  Start();
  GenerateSpec spec = Prompt({}, 40);
  spec.deadline = absl::FromUnixMillis(clock_ms_ + 60'000);
  ReplyCollector far, close;
  ASSERT_EQ(far.Start(engine_.get(), spec), absl::OkStatus());
  EXPECT_EQ(far.Wait(), absl::OkStatus());
  EXPECT_LE(probe_->num_runs(), 6);
  ExpectAtRest();
  const int64_t before = probe_->num_runs();
  spec.deadline = absl::FromUnixMillis(clock_ms_ + 20);
  ASSERT_EQ(close.Start(engine_.get(), spec), absl::OkStatus());
  EXPECT_EQ(close.Wait(), absl::OkStatus());
  EXPECT_EQ(probe_->num_runs() - before, 40);
}

// The backend fails at its n-th call, whichever that is: every request ends, typed, and so do later
// ones.
TEST_F(EndTest, AFailedBackendEndsEverythingAtWhateverCallItFails) {
  options_.prefill_tokens_idle = options_.prefill_tokens_busy = 6;
  int64_t total_calls = 0;
  for (int64_t fail_at = -1; fail_at < 60; ++fail_at) {
    SCOPED_TRACE(fail_at);
    fake_.fail_at_call = fail_at;
    fake_.polls_per_run = 2;
    probe_ = std::make_shared<FakeProbe>();
    engine_.reset();
    Start();
    std::deque<ReplyCollector> collectors(4);
    GenerateSpec spec = Prompt({1, 2, 3}, 6);
    spec.num_samples = 2;
    std::vector<absl::Status> started;
    for (ReplyCollector& collector : collectors) {
      started.push_back(collector.Start(engine_.get(), spec));
    }
    std::atomic<int> scores{0};
    ScoreSpec score;
    score.tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    score.output_positions = {1, 7};
    const auto score_id = engine_->Score(score, [&](absl::StatusOr<ScoreResult>) { ++scores; });
    bool failed = !score_id.ok();
    for (size_t i = 0; i < collectors.size(); ++i) {
      const absl::Status status = started[i].ok() ? collectors[i].Wait() : started[i];
      if (status.ok()) continue;
      failed = true;
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
      EXPECT_EQ(Reason(status), "BACKEND_FAILED");
      EXPECT_THAT(std::string(status.message()),
                  ::testing::Not(::testing::HasSubstr("fake device")));
      if (started[i].ok()) ExpectPrefix(collectors[i], spec);
    }
    if (score_id.ok()) {
      EXPECT_TRUE(Eventually([&] { return scores == 1; }));
    }
    ExpectAtRest();
    if (fail_at < 0) {
      total_calls = probe_->calls();
      EXPECT_FALSE(failed);
      continue;
    }
    if (probe_->calls() <= fail_at) continue;  // fewer calls than in other orders of arrival
    EXPECT_TRUE(Eventually([&] { return !engine_->GetLoad().health.ok(); }));
    ReplyCollector late;
    const absl::Status refused = late.Start(engine_.get(), spec);
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(Reason(refused), "BACKEND_FAILED");
    EXPECT_THAT(std::string(engine_->GetLoad().health.message()),
                ::testing::HasSubstr("fake device"));
  }
  EXPECT_GT(total_calls, 40);
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

TEST_F(EndTest, DrainEndsTheRestAtItsDeadline) {
  fake_.limits.num_slots = 1;
  Start();
  const GenerateSpec spec = Prompt({}, 1'000'000);
  ReplyCollector running, queued;
  ASSERT_EQ(running.Start(engine_.get(), spec), absl::OkStatus());
  ASSERT_EQ(queued.Start(engine_.get(), spec), absl::OkStatus());
  running.WaitForTokens(2);
  EXPECT_FALSE(engine_->Drain(absl::FromUnixMillis(clock_ms_)));
  for (ReplyCollector* collector : {&running, &queued}) {
    const absl::Status status = collector->Wait();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(Reason(status), "DRAINING");
  }
  ExpectAtRest();
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

TEST_F(EndTest, DestroyingTheEngineEndsEverythingAndTellsEverybody) {
  fake_.limits.num_slots = 2;
  Start();
  const GenerateSpec spec = Prompt({1}, 1'000'000);
  std::deque<ReplyCollector> collectors(6);
  for (ReplyCollector& collector : collectors) {
    ASSERT_EQ(collector.Start(engine_.get(), spec), absl::OkStatus());
  }
  std::atomic<int> scores{0};
  ScoreSpec score;
  score.tokens.assign(500, 1);
  ASSERT_EQ(engine_->Score(score, [&](absl::StatusOr<ScoreResult>) { ++scores; }).status(),
            absl::OkStatus());
  collectors[0].WaitForTokens(3);
  engine_.reset();
  EXPECT_EQ(scores, 1);
  for (ReplyCollector& collector : collectors) {
    ASSERT_TRUE(collector.reply().end().has_value());
    const absl::Status status = collector.Wait();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(Reason(status), "SHUTDOWN");
    EXPECT_EQ(collector.violation(), "");
  }
  EXPECT_EQ(probe_->dirty_slots(), 0);
  EXPECT_EQ(probe_->violations(), std::vector<std::string>());
}

TEST_F(EndTest, OutputsThatAreNotFiniteEndTheReplyWithDataLossAndHarmNoOther) {
  fake_.non_finite_draw_position = 9;
  Start();
  ReplyCollector collector;
  ASSERT_EQ(collector.Start(engine_.get(), Prompt({1, 2}, 50)), absl::OkStatus());
  const absl::Status status = collector.Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Reason(status), "NON_FINITE_OUTPUT");
  ReplyCollector shorter;
  ASSERT_EQ(shorter.Start(engine_.get(), Prompt({1, 2}, 3)), absl::OkStatus());
  EXPECT_EQ(shorter.Wait(), absl::OkStatus());
  EXPECT_EQ(probe_->violations(), std::vector<std::string>());
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
