// SPDX-License-Identifier: Apache-2.0
// Truth: the reference model of the engine, without slots, runs, checkpoints, tiers or threads. A
// session is the sequence of its tokens; a token is FakeBackend's pure function of the tokens fed
// before it. It is short, so that a reader can compare it with server/engine/README.md.
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
  std::optional<int64_t> abandoned_from;  // where the last Generate began, if it was cancelled

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  uint64_t hash() const;
  void Append(int32_t token, bool was_generated);
  void Cut(int64_t size);  // drops the marks beyond, too
  bool operator==(const SessionState&) const = default;
};

// What one sample draws when nothing disturbs it.
struct Drawn {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;   // [tokens]
  std::optional<Finish> finish;  // absent: an error follows
  std::string error = "NON_FINITE_OUTPUT";
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
  // For session requests: number of tokens seen, and the session's progress then.
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

  // Goes to the position of `ref` and gives `tokens` there; `appended`: the number of tokens that
  // were not there before. Returns the reason of the error that the request must get, which changes
  // nothing; empty: none.
  std::string Extend(const SessionRef& ref, std::span<const int32_t> tokens, SessionState* session,
                     int64_t* appended) const;

  // Maximum number of sessions of a tenant that has `own` of `all` sessions.
  int64_t MostSessions(int all, int own) const;

  // Returns the fault in `seen`, the reply to a Generate from an empty state; empty: none.
  std::string Judge(const GenerateSpec& spec, const SeenReply& seen) const;
  // The possible states of the session after a request that ended as seen; none if a session in
  // this state could not have given this result. Several: the client cannot tell which. An error
  // with a cause outside the request (for example cancelled) is not judged.
  std::vector<SessionState> After(const SessionState& session, uint64_t seed,
                                  const GenerateSpec& spec, const SeenReply& seen) const;
  std::vector<SessionState> After(const SessionState& session, uint64_t seed,
                                  const AppendSpec& spec,
                                  const absl::StatusOr<ScoreResult>& seen) const;

  // The result that a Score must have; nullopt: NON_FINITE_OUTPUT. REQUIRES: output_positions
  // ascend.
  std::optional<ScoreResult> Score(const ScoreSpec& spec) const;

 private:
  int64_t MaxNew(const GenerateSpec& spec, int64_t given) const;
  bool MatchStop(const GenerateSpec& spec, Drawn* drawn) const;
  bool EndsText(const GenerateSpec& spec, const std::string& text, std::span<const int32_t> stops,
                std::vector<uint32_t>* mask, Drawn* drawn) const;
  std::string JudgeSample(const Drawn& drawn, const GenerateSpec& spec, const SeenReply& seen,
                          const SeenSample& sample) const;
  bool ScoreToken(const FakeHistory& before, int32_t token, bool want_logprob, bool want_output,
                  ScoreResult* result) const;
  std::optional<ScoreResult> ScoreSequence(const SessionState& session, int64_t first,
                                           int64_t count, const AppendSpec& spec) const;

  const World& world_;
};

// Compares everything except the progress of the session.
inline bool SameScore(const ScoreResult& want, const ScoreResult& seen) {
  return seen.nll_nats == want.nll_nats && seen.num_scored == want.num_scored &&
         seen.logprobs == want.logprobs && seen.outputs == want.outputs;
}
// The machine-readable reason of an error; empty: none.
inline std::string ReasonOf(const absl::Status& status) { return GetErrorDetail(status).reason; }
// Whether the request ended for a cause outside it: cancel, deadline, close, drain, failed backend.
inline bool EndedFromOutside(const absl::Status& status) {
  return absl::IsCancelled(status) || absl::IsDeadlineExceeded(status) ||
         ReasonOf(status) == "READER_TOO_SLOW" || absl::IsUnavailable(status);
}

}  // namespace rivulet
