// SPDX-License-Identifier: Apache-2.0
// An engine with client sessions; the test waits for the result of each call.
#pragma once

#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/base/error.h"
#include "server/engine/session_calls.h"
#include "tests/support/unshared.h"
#include "tests/unit/server/engine/engine_fixture.h"

namespace rivulet {

class EngineSessionTest : public EngineTest {
 protected:
  // Runs a call of session_calls.h and waits for its result.
  template <typename Result, typename Call>
  absl::StatusOr<Result> Await(Call call) {
    std::promise<absl::StatusOr<Result>> promise;
    const absl::StatusOr<RequestId> id = call([&promise](absl::StatusOr<Result> result) {
      // This thread may hold the error for longer than the waiting thread.
      if (!result.ok()) result = Unshared(result.status());
      promise.set_value(std::move(result));
    });
    if (!id.ok()) return id.status();
    return promise.get_future().get();
  }

  SessionRef Open(const std::string& tenant = "t", uint64_t seed = 7) {
    const auto info = Await<SessionInfo>([&](SessionDone done) {
      return OpenSession(engine_.get(), {tenant, seed, std::nullopt}, std::move(done));
    });
    EXPECT_TRUE(info.ok()) << info.status();
    return {info.ok() ? info->id : SessionId(), tenant, std::nullopt, ""};
  }
  absl::StatusOr<ScoreResult> Append(const SessionRef& session, std::vector<int32_t> tokens,
                                     bool score = false) {
    AppendSpec spec;
    spec.session = session;
    spec.tokens = std::move(tokens);
    spec.score = spec.want_logprobs = score;
    return Await<ScoreResult>(
        [&](Engine::ScoreDone done) { return engine_->Append(spec, std::move(done)); });
  }
  GenerateSpec SpecOf(const SessionRef& session, int64_t max_tokens,
                      std::vector<int32_t> prompt = {}) {
    GenerateSpec spec = Prompt(std::move(prompt), max_tokens);
    spec.session = session;
    spec.session_seed = true;
    return spec;
  }
  // The tokens of a Generate that must end well.
  std::vector<int32_t> Generate(const GenerateSpec& spec) {
    ReplyCollector collector;
    EXPECT_TRUE(collector.Start(engine_.get(), spec).ok());
    const absl::Status status = collector.Wait();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(collector.violation(), "");
    return collector.sample().tokens;
  }
  absl::Status GenerateError(const GenerateSpec& spec) {
    ReplyCollector collector;
    const absl::Status status = collector.Start(engine_.get(), spec);
    return status.ok() ? collector.Wait() : status;
  }
  absl::StatusOr<SessionInfo> Rewind(SessionRef session, std::optional<int64_t> position,
                                     const std::string& mark = "") {
    session.position = position;
    session.mark = mark;
    return Await<SessionInfo>([&](SessionDone done) {
      return RewindSession(engine_.get(), session, absl::InfiniteFuture(), std::move(done));
    });
  }
  absl::StatusOr<SessionInfo> Get(const SessionRef& session) {
    return Await<SessionInfo>([&](SessionDone done) {
      return GetSession(engine_.get(), session, absl::InfiniteFuture(), std::move(done));
    });
  }
  absl::StatusOr<SessionPage> List(const ListSpec& spec) {
    return Await<SessionPage>(
        [&](auto done) { return ListSessions(engine_.get(), spec, std::move(done)); });
  }
  // The tokens that a lone request of the same sequence draws with the session's seed.
  std::vector<int32_t> Alone(std::vector<int32_t> prompt, int64_t max_tokens, uint64_t seed = 7) {
    return Solo(Prompt(std::move(prompt), max_tokens, seed));
  }
  static std::vector<int32_t> Join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  static std::string ReasonOf(const absl::Status& status) { return GetErrorDetail(status).reason; }
};

}  // namespace rivulet
