// SPDX-License-Identifier: Apache-2.0
// Cancellation at every point where a request can be, each hit exactly: from within the backend's
// calls, from listeners, between the loop's turns. Whatever is cancelled, every slot is free
// afterwards, nobody else has changed, and the session is as documented. RIVULET_STRESS_SCALE
// multiplies the trials of each point: 10^4 are RIVULET_STRESS_SCALE=50.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/stress/cancel_stage.h"

namespace rivulet::cancel_test {
namespace {

int64_t Trials() {
  const char* scale = std::getenv("RIVULET_STRESS_SCALE");
  const int64_t factor = scale == nullptr ? 1 : std::max<int64_t>(1, std::atoll(scale));
  return 200 * factor / (RIVULET_SANITIZED ? 10 : 1);
}

GenerateSpec Draw(int64_t max_tokens, size_t prompt = 2) {
  GenerateSpec spec;
  spec.max_tokens = max_tokens;
  for (size_t i = 0; i < prompt; ++i) spec.prompt.push_back(static_cast<int32_t>(5 + i));
  return spec;
}

GenerateSpec Samples(int count, size_t prompt = 2) {
  GenerateSpec spec = Draw(5, prompt);
  spec.num_samples = count;
  return spec;
}

using Outcome = CancelStage::Outcome;
constexpr auto kOk = absl::StatusCode::kOk;

struct Point {
  const char* name;
  std::function<void(CancelStage&)> act;  // starts the victim, sees to its cancellation
  Outcome outcome;
  bool armed = false;  // by CancelAt: the point must have been reached
};

// A reply that is cancelled right before the n-th call of a kind.
Point At(const char* name, GenerateSpec spec, BackendCall call, int n, Outcome outcome) {
  return {name,
          [=](CancelStage& stage) {
            stage.CancelAt(call, n);
            stage.Generate(spec);
          },
          outcome, true};
}

const Outcome kNothing = {.max_tokens = 0};  // cancelled before the first token
const Outcome kSome = {.min_tokens = 1, .max_tokens = 19};
const Outcome kEndedWell = {.code = kOk};

std::vector<Point> QueuePoints() {
  return {
      {"before_the_loop_has_seen_it",
       [](CancelStage& stage) {
         stage.Generate(Draw(8));
         stage.Cancel();
       },
       kNothing},
      {"while_it_waits_for_a_slot",
       [](CancelStage& stage) {
         stage.FillSlots(2);
         stage.Generate(Draw(8));
         stage.Turn();
         stage.Cancel();
       },
       kNothing},
      {"samples_that_wait_for_several_slots",
       [](CancelStage& stage) {
         stage.FillSlots(0);
         stage.Generate(Samples(3));
         stage.Turn();
         stage.Cancel();
       },
       kNothing},
      {"while_another_has_its_session",
       [](CancelStage& stage) {
         stage.OccupySession();
         stage.Generate(Draw(8));
         stage.Turn();
         stage.Cancel();
       },
       kNothing},
      {"while_another_has_its_session_and_a_third_waits",
       [](CancelStage& stage) {
         stage.OccupySession();
         stage.Generate(Draw(8));
         stage.OccupySession();
         stage.Cancel();
       },
       kNothing},
      {"in_the_turn_of_its_deadline",
       [](CancelStage& stage) {
         GenerateSpec spec = Draw(8);
         spec.deadline = absl::FromUnixSeconds(1005);
         stage.FillSlots(1);
         stage.Generate(spec);
         stage.Turn();
         stage.PassDeadline();
         stage.Cancel();
       },
       kNothing},
      {"together_with_its_sessions_close",
       [](CancelStage& stage) {
         stage.Generate(Draw(20));
         stage.Turn();
         stage.CloseSession();
         stage.Cancel();
       },
       {.session_lives = false}},
      {"while_the_engine_drains",
       [](CancelStage& stage) {
         stage.Generate(Draw(20));
         stage.Turn();
         stage.Drain();
         stage.Cancel();
       },
       {.max_tokens = 19, .drained = true}},
  };
}

std::vector<Point> RunPoints() {
  return {
      At("while_its_slot_is_zeroed", Draw(20), BackendCall::kZero, 1, {.max_tokens = 19}),
      At("while_its_state_is_written", Draw(20), BackendCall::kWrite, 1, {.max_tokens = 19}),
      At("between_admission_and_its_first_run", Draw(20), BackendCall::kSetSampler, 1,
         {.max_tokens = 19}),
      At("at_its_first_run", Draw(20, 12), BackendCall::kSubmit, 1, kNothing),
      At("in_the_middle_of_its_prompt", Draw(20, 14), BackendCall::kSubmit, 3, kNothing),
      At("as_its_first_token_comes", Draw(20, 3), BackendCall::kPoll, 1, kSome),
      At("in_the_middle_of_a_run", Draw(20, 0), BackendCall::kPoll, 5, kSome),
      At("while_its_state_is_forked_to_samples", Samples(3), BackendCall::kCopy, 2, kNothing),
      At("while_samples_are_zeroed", Samples(3, 9), BackendCall::kZero, 1, kNothing),
      At("while_its_state_is_saved", Draw(4), BackendCall::kRead, 1, kEndedWell),
      At("while_its_slot_is_taken_back", Draw(4), BackendCall::kZero, 2, kEndedWell),
      {"between_windows_of_a_score",
       [](CancelStage& stage) {
         stage.CancelAt(BackendCall::kZero, 3);
         stage.Score(20, 3);
       },
       {},
       true},
      {"in_the_middle_of_a_score",
       [](CancelStage& stage) {
         stage.CancelAt(BackendCall::kPoll, 4);
         stage.Score(30, 0);
       },
       {},
       true},
      {"in_the_middle_of_an_append",
       [](CancelStage& stage) {
         stage.CancelAt(BackendCall::kSubmit, 2);
         stage.Append(14);
       },
       {},
       true},
      {"while_an_appends_state_is_saved",
       [](CancelStage& stage) {
         stage.CancelAt(BackendCall::kRead, 1);
         stage.Append(6);
       },
       kEndedWell, true},
  };
}

std::vector<Point> ReaderPoints() {
  return {
      {"while_its_reader_is_slow",
       [](CancelStage& stage) {
         stage.victim().reads = false;
         stage.Generate(Draw(40));
         stage.Settle();
         stage.Cancel();
       },
       {.min_tokens = 7, .max_tokens = 39}},
      {"while_its_reader_is_slow_and_others_want_its_slot",
       [](CancelStage& stage) {
         stage.victim().reads = false;
         stage.Generate(Draw(40));
         stage.Settle();
         stage.FillSlots(3);
         stage.Settle();
         stage.Cancel();
       },
       {.min_tokens = 7, .max_tokens = 39}},
      {"by_its_reader_at_the_first_token",
       [](CancelStage& stage) {
         stage.victim().on_ready = [&stage] { stage.Cancel(); };
         stage.Generate(Draw(20));
       },
       kSome},
      {"by_its_reader_at_the_end",
       [](CancelStage& stage) {
         stage.victim().on_ready = [&stage] {
           if (stage.victim().reply->end()) stage.Cancel();
         };
         stage.Generate(Draw(6));
       },
       kEndedWell},
      {"between_its_last_token_and_its_end",
       [](CancelStage& stage) {
         stage.Generate(Draw(1, 0));
         stage.Turn();
         stage.Cancel();
       },
       kEndedWell},
      {"after_its_end",
       [](CancelStage& stage) {
         stage.Generate(Draw(6));
         stage.SettleVictim();
         stage.Cancel();
         stage.Cancel();
       },
       kEndedWell},
      {"after_its_end_when_others_have_every_slot",
       [](CancelStage& stage) {
         stage.Generate(Draw(6));
         stage.SettleVictim();
         stage.FillSlots(2);
         stage.Cancel();
         stage.Turn();
         stage.Cancel();
       },
       kEndedWell},
  };
}

std::vector<Point> CallPoints() {
  const auto call = [](const char* name, void (CancelStage::*start)(), bool waits, int made) {
    return Point{name,
                 [start, waits](CancelStage& stage) {
                   if (waits) stage.OccupySession();
                   (stage.*start)();
                   if (waits) stage.Turn();
                   stage.Cancel();
                 },
                 // One that nothing stands before is carried out as it arrives.
                 {.code = waits ? absl::StatusCode::kCancelled : kOk, .sessions_made = made}};
  };
  return {
      call("a_snapshot_that_waits_for_its_session", &CancelStage::Snapshot, true, 0),
      call("a_snapshot_that_arrives", &CancelStage::Snapshot, false, 0),
      call("a_fork_that_waits_for_its_session", &CancelStage::Fork, true, 0),
      call("a_fork_that_arrives", &CancelStage::Fork, false, 2),
      call("a_restore_that_arrives", &CancelStage::Restore, false, 1),
  };
}

std::vector<Point> Points() {
  std::vector<Point> points;
  for (const auto& some : {QueuePoints(), RunPoints(), ReaderPoints(), CallPoints()}) {
    points.insert(points.end(), some.begin(), some.end());
  }
  return points;
}

void PrintTo(const Point& point, std::ostream* out) { *out << point.name; }

class CancelTest : public ::testing::TestWithParam<Point> {};

TEST_P(CancelTest, LeavesEverySlotFreeAndNobodyElseChanged) {
  const Point& point = GetParam();
  for (int64_t trial = 0; trial < Trials() && !HasFailure(); ++trial) {
    SCOPED_TRACE(trial);
    CancelStage stage(static_cast<uint32_t>(trial));
    stage.Begin();
    point.act(stage);
    stage.Settle();
    EXPECT_TRUE(stage.hit() || !point.armed) << "the point was never reached";
    stage.Check(point.outcome);
  }
}

INSTANTIATE_TEST_SUITE_P(Points, CancelTest, ::testing::ValuesIn(Points()),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace rivulet::cancel_test
