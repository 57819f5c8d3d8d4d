// SPDX-License-Identifier: Apache-2.0
// How the caller ends a Client::Generate or Client::GenerateAsync whose calls are lost.
// contract/lost_replies_test.py has the rest of "Lost replies" in client/README.md.
#include <gtest/gtest.h>

#include <future>
#include <limits>
#include <thread>

#include "absl/time/clock.h"
#include "rivulet/client.h"
#include "tests/e2e/client/scripted_server.h"

namespace rivulet::testing {
namespace {

struct Outcome {
  size_t parts = 0;
  absl::Status status;
};

// The parameter: GenerateAsync in place of Generate.
class ResumeTest : public ::testing::TestWithParam<bool> {
 protected:
  // Ends after `most` parts.
  static Outcome Run(const Client& client, const v1::GenerateRequest& request,
                     const CallOptions& options = {},
                     size_t most = std::numeric_limits<size_t>::max()) {
    Outcome outcome;
    const auto on_part = [&](const v1::GenerateReply&) { return ++outcome.parts < most; };
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

TEST_P(ResumeTest, FalseEndsAReplyThatWasResumed) {
  ScriptedServer server({{.parts = 2, .end = Unavailable("GONE")}, {.parts = 1, .holds = true}});
  const Outcome outcome = Run(server.Connect(), ScriptedRequest(1, 4), {}, 3);
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(outcome.parts, 3u);
}

TEST_P(ResumeTest, FalseAtTheLastPartEndsAReplyThatEndedWell) {
  ScriptedServer server;
  const Outcome outcome = Run(server.Connect(), ScriptedRequest(1, 4), {}, 5);
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(outcome.parts, 5u);
}

}  // namespace
}  // namespace rivulet::testing
