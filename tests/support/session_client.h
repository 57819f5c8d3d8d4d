// SPDX-License-Identifier: Apache-2.0
// SessionClient: the client sessions of one tenant on an engine, with calls that wait for their
// result; and the conversion of a session to a snapshot's bytes and back.
#pragma once

#include <functional>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "model/base/error.h"
#include "server/engine/engine.h"
#include "server/engine/session_calls.h"
#include "server/sessions/snapshot.h"
#include "tests/support/reply_collector.h"

namespace rivulet {

// The bytes that SnapshotSession sends for `image`, and the session that RestoreSession makes of
// them for `tenant`.
inline std::string ToSnapshotBytes(const SessionImage& image, const Engine& engine,
                                   absl::string_view key = "") {
  Snapshot snapshot;
  SetFingerprint(engine.model(), &snapshot);
  snapshot.numerics_id = engine.limits().numerics_id;
  snapshot.tenant = image.tenant;
  snapshot.seed = image.seed;
  snapshot.sequence_hash = image.history.hash();
  for (int64_t i = 0; i < image.history.size(); ++i) {
    snapshot.tokens.push_back(image.history.token(i));
    snapshot.generated.push_back(image.history.generated(i));
  }
  snapshot.marks = image.marks;
  if (image.state.state != nullptr) {
    snapshot.fed = image.state.fed;
    const auto values = image.state.state->values();
    snapshot.state.assign(values.begin(), values.end());
  }
  return EncodeSnapshot(snapshot, key);
}

inline absl::StatusOr<RestoreSpec> ToRestoreSpec(absl::string_view bytes, const Engine& engine,
                                                 const std::string& tenant,
                                                 absl::string_view key = "") {
  RIVULET_ASSIGN_OR_RETURN(Snapshot snapshot, DecodeSnapshot(bytes, key));
  RIVULET_RETURN_IF_ERROR(CheckSnapshot(snapshot, engine.model(), engine.limits(), tenant));
  RestoreSpec spec;
  spec.tenant = tenant;
  spec.seed = snapshot.seed;
  spec.marks = std::move(snapshot.marks);
  spec.fed = snapshot.fed;
  spec.state = std::move(snapshot.state);
  for (size_t i = 0; i < snapshot.tokens.size(); ++i) {
    spec.history.Append(snapshot.tokens[i], snapshot.generated[i]);
  }
  return spec;
}

// Thread: any, but not the engine's emitter.
class SessionClient {
 public:
  // `engine` is borrowed.
  SessionClient(Engine* engine, std::string tenant) : engine_(engine), tenant_(std::move(tenant)) {}

  SessionRef Ref(const SessionId& id, std::optional<int64_t> position = std::nullopt,
                 std::string mark = "") const {
    return {id, tenant_, position, std::move(mark)};
  }

  absl::StatusOr<SessionInfo> Open(uint64_t seed) const {
    OpenSpec spec;
    spec.tenant = tenant_;
    spec.seed = seed;
    return Await<SessionInfo>(
        [&](SessionDone done) { return OpenSession(engine_, spec, std::move(done)); });
  }
  absl::StatusOr<ScoreResult> Append(const SessionRef& session, std::vector<int32_t> tokens,
                                     bool score = false) const {
    AppendSpec spec;
    spec.session = session;
    spec.tokens = std::move(tokens);
    spec.score = spec.want_logprobs = score;
    return Await<ScoreResult>(
        [&](Engine::ScoreDone done) { return engine_->Append(spec, std::move(done)); });
  }
  // The tokens of sample 0, or the error of the reply.
  absl::StatusOr<std::vector<int32_t>> Generate(GenerateSpec spec) const {
    ReplyCollector collector;
    RIVULET_RETURN_IF_ERROR(collector.Start(engine_, std::move(spec)));
    RIVULET_RETURN_IF_ERROR(collector.Wait());
    return collector.sample().tokens;
  }
  absl::StatusOr<std::vector<int32_t>> Generate(const SessionRef& session, int64_t max_tokens,
                                                std::vector<int32_t> prompt = {}) const {
    GenerateSpec spec;
    spec.session = session;
    spec.session_seed = true;
    spec.max_tokens = max_tokens;
    spec.prompt = std::move(prompt);
    return Generate(std::move(spec));
  }
  absl::StatusOr<SessionInfo> Rewind(const SessionRef& session) const {
    return Await<SessionInfo>([&](SessionDone done) {
      return RewindSession(engine_, session, absl::InfiniteFuture(), std::move(done));
    });
  }
  absl::StatusOr<std::vector<SessionInfo>> Fork(const SessionRef& session, int count,
                                                uint64_t seed) const {
    ForkSpec spec;
    spec.session = session;
    spec.count = count;
    spec.seed = seed;
    return Await<std::vector<SessionInfo>>(
        [&](SessionsDone done) { return ForkSession(engine_, spec, std::move(done)); });
  }
  absl::StatusOr<SessionImage> Snapshot(const SessionRef& session) const {
    return Await<SessionImage>([&](ImageDone done) {
      return SnapshotSession(engine_, session, absl::InfiniteFuture(), std::move(done));
    });
  }
  absl::StatusOr<SessionInfo> Restore(RestoreSpec spec) const {
    return Await<SessionInfo>([&](SessionDone done) {
      return RestoreSession(engine_, std::move(spec), std::move(done));
    });
  }
  // Like the RPC, from bytes.
  absl::StatusOr<SessionInfo> RestoreBytes(absl::string_view bytes,
                                           absl::string_view key = "") const {
    RIVULET_ASSIGN_OR_RETURN(RestoreSpec spec, ToRestoreSpec(bytes, *engine_, tenant_, key));
    return Restore(std::move(spec));
  }
  absl::Status Close(const SessionId& id) const {
    std::promise<absl::Status> promise;
    const auto call = CloseSession(
        engine_, Ref(id), [&promise](const absl::Status& status) { promise.set_value(status); });
    return call.ok() ? promise.get_future().get() : call.status();
  }
  absl::StatusOr<std::vector<SessionInfo>> List() const {
    RIVULET_ASSIGN_OR_RETURN(SessionPage page, Await<SessionPage>([&](auto done) {
                               return ListSessions(engine_, {tenant_}, std::move(done));
                             }));
    return std::move(page.sessions);
  }

 private:
  template <typename Result, typename Call>
  static absl::StatusOr<Result> Await(Call call) {
    std::promise<absl::StatusOr<Result>> promise;
    const absl::StatusOr<RequestId> id =
        call([&promise](absl::StatusOr<Result> result) { promise.set_value(std::move(result)); });
    if (!id.ok()) return id.status();
    return promise.get_future().get();
  }

  Engine* const engine_;
  const std::string tenant_;
};

}  // namespace rivulet
