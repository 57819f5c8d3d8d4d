// SPDX-License-Identifier: Apache-2.0
// Client::Generate and Client::GenerateAsync where calls are lost: "Lost replies" of
// client/README.md.
#include <gtest/gtest.h>

#include <future>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "rivulet/client.h"
#include "tests/e2e/client/scripted_server.h"

namespace rivulet::testing {
namespace {

using grpc::Status;
using grpc::StatusCode;

struct Outcome {
  std::vector<std::string> parts;
  absl::Status status;
};

std::vector<std::string> Bytes(const std::vector<v1::GenerateReply>& parts) {
  std::vector<std::string> bytes;
  for (const v1::GenerateReply& part : parts) bytes.push_back(part.SerializeAsString());
  return bytes;
}

// The parameter: GenerateAsync in place of Generate.
class ResumeTest : public ::testing::TestWithParam<bool> {
 protected:
  // Ends after `most` parts.
  static Outcome Run(const Client& client, const v1::GenerateRequest& request,
                     const CallOptions& options = {},
                     size_t most = std::numeric_limits<size_t>::max()) {
    Outcome outcome;
    const auto on_part = [&](const v1::GenerateReply& part) {
      outcome.parts.push_back(part.SerializeAsString());
      return outcome.parts.size() < most;
    };
    if (GetParam()) {
      std::promise<absl::Status> ended;
      client.GenerateAsync(
          request, on_part, [&](absl::Status status) { ended.set_value(std::move(status)); },
          options);
      outcome.status = ended.get_future().get();
    } else {
      outcome.status = client.Generate(request, on_part, options);
    }
    return outcome;
  }
};

INSTANTIATE_TEST_SUITE_P(All, ResumeTest, ::testing::Bool(), [](const auto& param_info) {
  return param_info.param ? "Async" : "Sync";
});

TEST_P(ResumeTest, TheCallerSeesOneReplyWhereverItIsCut) {
  const v1::GenerateRequest request = ScriptedRequest(2, 3);
  const std::vector<std::string> whole = Bytes(ScriptedReply(request));
  for (int cut = 0; cut <= 7; ++cut) {
    ScriptedServer server({{.parts = cut, .end = Unavailable("GONE")}});
    const Outcome outcome = Run(server.Connect(), request);
    EXPECT_EQ(outcome.status, absl::OkStatus()) << cut;
    EXPECT_EQ(outcome.parts, whole) << cut;
    EXPECT_EQ(server.requests().size(), cut == 7 ? 1u : 2u) << "the last part was the usage";
  }
}

TEST_P(ResumeTest, AReplyIsCutAgainAndAgainInEveryWay) {
  ScriptedServer server(
      {{.parts = 2, .end = Status(StatusCode::UNKNOWN, "Stream removed")},
       {.parts = 0, .end = ServerError(StatusCode::RESOURCE_EXHAUSTED, "FULL", kSoon)},
       {.parts = 1, .end = Status(StatusCode::INTERNAL, "RST_STREAM")},
       {.parts = 1, .end = Status(StatusCode::INTERNAL, "anything")},
       {.parts = 2, .end = Status(StatusCode::UNAVAILABLE, "reset")}});
  v1::GenerateRequest request = ScriptedRequest(3, 4);
  const Outcome outcome = Run(server.Connect(), request);
  EXPECT_EQ(outcome.status, absl::OkStatus());
  EXPECT_EQ(outcome.parts, Bytes(ScriptedReply(request)));
  EXPECT_EQ(server.requests().size(), 6u);
}

TEST_P(ResumeTest, EveryCallHasTheSameSeed) {
  ScriptedServer server(
      {{.parts = 0, .end = Unavailable("GONE")}, {.parts = 2, .end = Unavailable("GONE")}});
  v1::GenerateRequest request = ScriptedRequest(1, 4);
  request.clear_sampling();
  EXPECT_EQ(Run(server.Connect(), request).status, absl::OkStatus());
  ASSERT_EQ(server.requests().size(), 3u);
  EXPECT_TRUE(server.requests()[0].sampling().has_seed());
  EXPECT_FALSE(server.requests()[0].has_resume());
  EXPECT_TRUE(server.requests()[1].has_resume());
  for (v1::GenerateRequest same : server.requests()) {
    same.clear_resume();
    EXPECT_EQ(same.SerializeAsString(), server.requests()[0].SerializeAsString());
  }
}

TEST_P(ResumeTest, BeforeTheFirstPartThereAreMaxAttempts) {
  ClientOptions options;
  options.max_attempts = 3;
  for (const bool resume : {true, false}) {
    std::deque<Act> acts(4, {.parts = 0, .end = Unavailable("LATER")});
    acts[0].end = Unavailable("FIRST");
    ScriptedServer server(acts);
    const Outcome outcome = Run(server.Connect(options), ScriptedRequest(1, 4), {.resume = resume});
    EXPECT_EQ(GetErrorInfo(outcome.status).reason, "FIRST");
    EXPECT_EQ(server.requests().size(), 3u) << "gRPC itself tries nothing again";
  }
}

TEST_P(ResumeTest, FiveCallsThatBringNothingEndTheReply) {
  std::deque<Act> acts(7, {.parts = 0, .end = Unavailable("LATER")});
  acts[0] = {.parts = 1, .end = Unavailable("CUT")};
  ScriptedServer server(acts);
  const Outcome outcome = Run(server.Connect(), ScriptedRequest(1, 4));
  EXPECT_EQ(GetErrorInfo(outcome.status).reason, "CUT");
  EXPECT_EQ(outcome.parts.size(), 1u);
  EXPECT_EQ(server.requests().size(), 6u);
}

TEST_P(ResumeTest, AWaitBeyondTheDeadlineEndsTheReplyAtOnce) {
  ScriptedServer server({{.parts = 1, .end = Unavailable("DRAINING", kNever)}});
  const Outcome outcome =
      Run(server.Connect(), ScriptedRequest(1, 4), {.deadline = absl::Now() + kNever / 2});
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(server.requests().size(), 1u);
}

TEST_P(ResumeTest, TheDeadlineIsOneForAllCalls) {
  ScriptedServer server({{.parts = 1, .end = Unavailable("GONE")}, {.parts = 1, .holds = true}});
  const Outcome outcome =
      Run(server.Connect(), ScriptedRequest(1, 4), {.deadline = absl::Now() + absl::Seconds(1)});
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_P(ResumeTest, StopEndsAWaitAtOnce) {
  ScriptedServer server({{.parts = 1, .end = Unavailable("DRAINING", kNever)}});
  std::stop_source stop;
  std::thread stopping([&] {
    server.AwaitRequests(1);
    absl::SleepFor(absl::Milliseconds(20));  // a chance to begin the wait
    stop.request_stop();
  });
  const Outcome outcome = Run(server.Connect(), ScriptedRequest(1, 4), {.stop = stop.get_token()});
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(server.requests().size(), 1u);
  stopping.join();
}

TEST_P(ResumeTest, AServerThatWouldGoOnOtherwiseRefuses) {
  ScriptedServer server({{.parts = 2, .end = Unavailable("GONE")}, {.model = 2}});
  const Outcome outcome = Run(server.Connect(), ScriptedRequest(1, 4));
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(GetErrorInfo(outcome.status).reason, "RESUME_MISMATCH");
  EXPECT_EQ(outcome.parts.size(), 2u);
}

TEST_P(ResumeTest, WithoutResumeAReplyThatHasBegunEndsWithTheErrorOfItsCall) {
  ScriptedServer server(
      {{.parts = 0, .end = Unavailable("EARLY")}, {.parts = 2, .end = Unavailable("CUT")}});
  const Outcome outcome = Run(server.Connect(), ScriptedRequest(1, 4), {.resume = false});
  EXPECT_EQ(GetErrorInfo(outcome.status).reason, "CUT");
  EXPECT_EQ(outcome.parts.size(), 2u);
}

TEST_P(ResumeTest, FalseEndsAReplyThatWasResumed) {
  ScriptedServer server({{.parts = 2, .end = Unavailable("GONE")}, {.parts = 1, .holds = true}});
  const Outcome outcome = Run(server.Connect(), ScriptedRequest(1, 4), {}, 3);
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(outcome.parts.size(), 3u);
}

TEST_P(ResumeTest, FalseAtTheLastPartEndsAReplyThatEndedWell) {
  ScriptedServer server;
  const Outcome outcome = Run(server.Connect(), ScriptedRequest(1, 4), {}, 5);
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(outcome.parts.size(), 5u);
}

TEST_P(ResumeTest, ASessionIsContinuedOnlyFromAPosition) {
  for (const bool at_position : {false, true}) {
    ScriptedServer server({{.parts = 2, .end = Unavailable("GONE")}});
    v1::GenerateRequest request = ScriptedRequest(1, 4);
    request.mutable_session()->set_session_id("s");
    request.mutable_session()->set_sequence_hash(7);
    if (at_position) request.mutable_session()->set_position(3);
    const Outcome outcome = Run(server.Connect(), request);
    EXPECT_EQ(outcome.status.ok(), at_position) << outcome.status;
    if (!at_position) continue;
    EXPECT_EQ(server.requests()[1].session().SerializeAsString(),
              request.session().SerializeAsString());
    EXPECT_EQ(outcome.parts, Bytes(ScriptedReply(request)));
  }
}

}  // namespace
}  // namespace rivulet::testing
