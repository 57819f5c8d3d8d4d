// SPDX-License-Identifier: Apache-2.0
// Truth: what the engine promises, said without slots, runs, checkpoints, tiers or threads. A
// session is the sequence of its tokens; a token is FakeBackend's pure function of what was fed
// before it. It stays short, so that it can be read against server/engine/README.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/base/error.h"
#include "server/engine/engine.h"
#include "server/engine/reply.h"
#include "server/engine/request.h"
#include "tests/simulation/world.h"
#include "tests/support/fake_backend.h"

namespace rivulet {

struct SessionState {
  std::vector<int32_t> tokens;
  std::vector<bool> generated;  // [tokens]
  std::map<std::string, int64_t> marks;
  std::optional<int64_t> abandoned_from;  // where a cancelled Generate began that came last

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  uint64_t hash() const;
  void Append(int32_t token, bool was_generated);
  void Cut(int64_t size);  // with the marks beyond
  bool operator==(const SessionState&) const = default;
};

// What one sample draws when nothing disturbs it.
struct Drawn {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;   // [tokens]
  std::optional<Finish> finish;  // absent: NON_FINITE_OUTPUT follows
};

// One sample as its client saw it.
struct SeenSample {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::string text;
  std::optional<Finish> finish;
};

struct SeenReply {
  absl::Status status;
  std::vector<SeenSample> samples;
  // Of session requests: tokens seen, and where the session was then.
  std::vector<std::pair<int64_t, SessionProgress>> progress;
};

// Thread: any; `world` is borrowed.
class Truth {
 public:
  explicit Truth(const World& world) : world_(world) {}

  // Before the first token.
  FakeHistory Fresh() const { return {.grows = world_.grows()}; }
  // After the first `fed` tokens of the sequence, the implied bos counted.
  FakeHistory Fed(const SessionState& session, int64_t fed) const;

  // What `spec` draws after `from`, which holds its prompt.
  Drawn Draw(const SessionState& from, const GenerateSpec& spec, uint32_t sample) const;

  // Goes to the position of `ref` and gives `tokens` there; `appended` says how many were not there
  // before. Returns the reason of the error that this must be, which changes nothing; empty: none.
  std::string Extend(const SessionRef& ref, std::span<const int32_t> tokens, SessionState* session,
                     int64_t* appended) const;

  // How many sessions a tenant may have that has `own` of `all`.
  int64_t MostSessions(int all, int own) const;

  // Empty: `seen` is what a Generate from an empty state may bring; else what is wrong.
  std::string Judge(const GenerateSpec& spec, const SeenReply& seen) const;
  // The state of the session after a request that ended as seen; nothing where a session in this
  // state could not have brought that. More than one: the client cannot tell. An error that is not
  // about the request itself (cancelled, say) is taken as it is.
  std::vector<SessionState> After(const SessionState& session, uint64_t seed,
                                  const GenerateSpec& spec, const SeenReply& seen) const;
  std::vector<SessionState> After(const SessionState& session, uint64_t seed,
                                  const AppendSpec& spec,
                                  const absl::StatusOr<ScoreResult>& seen) const;

  // What a Score must bring; nothing: NON_FINITE_OUTPUT. Its output_positions ascend.
  std::optional<ScoreResult> Score(const ScoreSpec& spec) const;

 private:
  int64_t MaxNew(const GenerateSpec& spec, int64_t given) const;
  bool MatchStop(const GenerateSpec& spec, Drawn* drawn) const;
  std::string JudgeSample(const Drawn& drawn, const GenerateSpec& spec, const SeenReply& seen,
                          const SeenSample& sample) const;
  bool ScoreToken(const FakeHistory& before, int32_t token, bool want_logprob, bool want_output,
                  ScoreResult* result) const;
  std::optional<ScoreResult> ScoreSequence(const SessionState& session, int64_t first,
                                           int64_t count, const AppendSpec& spec) const;

  const World& world_;
};

// All but the progress of a session.
inline bool SameScore(const ScoreResult& want, const ScoreResult& seen) {
  return seen.nll_nats == want.nll_nats && seen.num_scored == want.num_scored &&
         seen.logprobs == want.logprobs && seen.outputs == want.outputs;
}
// The machine-readable reason of an error; empty where there is none.
inline std::string ReasonOf(const absl::Status& status) { return GetErrorDetail(status).reason; }
// It ended for a cause outside the request: cancel, deadline, close, drain, failed backend.
inline bool EndedFromOutside(const absl::Status& status) {
  return absl::IsCancelled(status) || absl::IsDeadlineExceeded(status) ||
         ReasonOf(status) == "READER_TOO_SLOW" || absl::IsUnavailable(status);
}

}  // namespace rivulet
