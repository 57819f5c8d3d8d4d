// SPDX-License-Identifier: Apache-2.0
// What an engine counts and times, on a clock that the test moves.
#include "server/engine/meters.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "server/engine/engine_parts.h"
#include "server/engine/session_calls.h"
#include "tests/support/stepped_engine_test_case.h"

namespace rivulet {
namespace {

class MetersTest : public SteppedEngineTestCase {
 protected:
  const EngineMeters& meters() const { return engine_->meters(); }
  static double SumOf(const Histogram& histogram) { return histogram.Read().sum; }
  static int64_t TotalOf(const Histogram& histogram) { return histogram.Read().total(); }

  void Generate(int64_t max_tokens, int num_samples = 1) {
    GenerateSpec spec;
    spec.prompt = {1, 2, 3};
    spec.max_tokens = max_tokens;
    spec.num_samples = num_samples;
    ASSERT_TRUE(collector_.Start(engine_.get(), spec).ok());
  }
  void TurnToEnd() {
    while (engine_->Turn()) continue;
    engine_->Emit();
  }
};

TEST_F(MetersTest, ARequestIsCountedAndTimedFromArrivalToEnd) {
  Generate(3);
  EXPECT_EQ(meters().started(RequestKind::kGenerate), 0) << "the loop has not taken it yet";
  now_ += absl::Seconds(2);
  EXPECT_TRUE(engine_->Turn());
  EXPECT_EQ(meters().started(RequestKind::kGenerate), 1);
  EXPECT_EQ(TotalOf(meters().queue_time()), 1);
  EXPECT_DOUBLE_EQ(SumOf(meters().queue_time()), 2);
  EXPECT_DOUBLE_EQ(SumOf(meters().first_token()), 2);
  EXPECT_EQ(TotalOf(meters().reply_gap()), 0) << "one message has no gap";
  now_ += absl::Milliseconds(500);
  EXPECT_TRUE(engine_->Turn());
  now_ += absl::Milliseconds(250);
  EXPECT_TRUE(engine_->Turn());
  EXPECT_EQ(TotalOf(meters().reply_gap()), 2);
  EXPECT_DOUBLE_EQ(SumOf(meters().reply_gap()), 0.75);
  TurnToEnd();
  EXPECT_TRUE(collector_.Wait().ok());
  EXPECT_EQ(meters().ended_well(RequestKind::kGenerate), 1);
  EXPECT_EQ(TotalOf(meters().first_token()), 1);
  EXPECT_DOUBLE_EQ(SumOf(meters().duration()), 2.75);
  EXPECT_EQ(engine_->GetLoad().fed_total, 4) << "the bos and three tokens";
  EXPECT_EQ(engine_->GetLoad().tokens_total, 3);
}

TEST_F(MetersTest, ARequestThatArrivesAfterATurnHasLookedAtTheClockHasNotWaited) {
  Generate(1);
  now_ -= absl::Microseconds(1);
  TurnToEnd();
  EXPECT_TRUE(collector_.Wait().ok());
  EXPECT_EQ(TotalOf(meters().queue_time()), 1);
  EXPECT_EQ(SumOf(meters().queue_time()), 0);
  EXPECT_EQ(collector_.usage().queue_time, absl::ZeroDuration());
}

TEST_F(MetersTest, SamplesOfOneRequestHaveNoGapBetweenThem) {
  Generate(2, /*num_samples=*/4);
  TurnToEnd();
  EXPECT_TRUE(collector_.Wait().ok());
  EXPECT_EQ(TotalOf(meters().first_token()), 1);
  EXPECT_DOUBLE_EQ(SumOf(meters().reply_gap()), 0);
  EXPECT_EQ(engine_->GetLoad().tokens_total, 8);
  EXPECT_EQ(TotalOf(meters().run_rows()), probe_->num_runs());
  int64_t rows = 0;
  for (const FakeRun& run : probe_->runs()) rows += std::ssize(run.rows);
  EXPECT_DOUBLE_EQ(SumOf(meters().run_rows()), static_cast<double>(rows));
}

TEST_F(MetersTest, TheAgeOfTheLastRunCountsOnlyWhileThereIsSomethingToRun) {
  EXPECT_EQ(meters().run_age(now_ + absl::Seconds(9)), absl::ZeroDuration());
  Generate(2);
  EXPECT_TRUE(engine_->Turn());
  EXPECT_EQ(TotalOf(meters().run_duration()), 1);
  EXPECT_EQ(meters().run_age(now_ + absl::Seconds(9)), absl::Seconds(9));
  EXPECT_EQ(meters().run_age(now_ - absl::Seconds(9)), absl::ZeroDuration());
  TurnToEnd();
  EXPECT_EQ(meters().run_age(now_ + absl::Seconds(9)), absl::ZeroDuration());
}

TEST_F(MetersTest, EndsInErrorsAreCountedByCodeAndReason) {
  Generate(100);
  EXPECT_TRUE(engine_->Turn());
  EXPECT_FALSE(engine_->Drain(now_));
  TurnToEnd();
  EXPECT_TRUE(absl::IsUnavailable(collector_.Wait()));
  const auto errors = meters().errors(RequestKind::kGenerate);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(errors[0].reason, "DRAINING");
  EXPECT_EQ(errors[0].count, 1);
  EXPECT_EQ(meters().ended_well(RequestKind::kGenerate), 0);
  EXPECT_EQ(meters().started(RequestKind::kGenerate), 1);
  EXPECT_EQ(TotalOf(meters().duration()), 1);
}

TEST_F(MetersTest, SessionCallsAreCountedByTheirMethod) {
  SessionInfo opened;
  ASSERT_TRUE(
      OpenSession(engine_.get(), OpenSpec(), [&](const auto& info) { opened = *info; }).ok());
  TurnToEnd();
  SessionRef ref;
  ref.id = opened.id;
  ImageDone image_done = [](const absl::StatusOr<SessionImage>&) {};
  ASSERT_TRUE(SnapshotSession(engine_.get(), ref, absl::InfiniteFuture(), image_done).ok());
  ASSERT_TRUE(CloseSession(engine_.get(), ref, [](const absl::Status&) {}).ok());
  ASSERT_TRUE(CloseSession(engine_.get(), ref, [](const absl::Status&) {}).ok());
  TurnToEnd();
  EXPECT_EQ(meters().ended_well(RequestKind::kOpenSession), 1);
  EXPECT_EQ(meters().ended_well(RequestKind::kSnapshotSession), 1);
  EXPECT_EQ(meters().ended_well(RequestKind::kCloseSession), 1);
  const auto errors = meters().errors(RequestKind::kCloseSession);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].reason, "SESSION_NOT_FOUND");
  EXPECT_EQ(meters().started(RequestKind::kCloseSession), 2);
}

TEST_F(MetersTest, ARequestWithNothingToComputeStartsAndEnds) {
  ASSERT_TRUE(engine_->Score(ScoreSpec(), [](const auto&) {}).ok());
  EXPECT_EQ(meters().started(RequestKind::kScore), 1);
  EXPECT_EQ(meters().ended_well(RequestKind::kScore), 1);
  engine_->Emit();
}

TEST(MethodOfTest, EveryKindHasAMethodOfItsOwn) {
  std::set<std::string> methods;
  for (size_t i = 0; i < kNumRequestKinds; ++i) {
    methods.emplace(MethodOf(static_cast<RequestKind>(i)));
  }
  EXPECT_EQ(methods.size(), kNumRequestKinds);
  EXPECT_EQ(methods.count(""), 0u);
  EXPECT_EQ(MethodOf(static_cast<RequestKind>(kNumRequestKinds)), "")
      << "kNumRequestKinds counts all";
}

}  // namespace
}  // namespace rivulet
