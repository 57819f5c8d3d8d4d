// SPDX-License-Identifier: Apache-2.0
// Requests in the engine's own types: no wire types, no sockets. server/grpc converts and validates
// the form; the engine validates against the model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "model/base/fields.h"
#include "model/sampler.h"
#include "server/base/key_account.h"
#include "server/constraints/constraint.h"
#include "server/sessions/session.h"

namespace rivulet {

// Identifies a submitted request; never reused, never 0.
using RequestId = uint64_t;

// Which of a tenant's own waiting requests goes first. It takes nothing from other tenants
// (README.md says how slots are shared).
enum class Priority : uint8_t { kHigh, kNormal, kLow };
inline constexpr int kNumPriorities = 3;

// The kind of a request, after the method of the API (EngineMeters counts by it).
enum class RequestKind : uint8_t {
  kGenerate,
  kScore,
  kAppend,
  kOpenSession,
  kForkSession,
  kRewindSession,
  kSnapshotSession,
  kRestoreSession,
  kCloseSession,
  kGetSession,
  kListSessions,
};
inline constexpr size_t kNumRequestKinds = 11;

// The session that a request continues. Requests of one session take effect one after another,
// in the order of their arrival.
struct SessionRef {
  SessionId id;
  std::string tenant;  // a session of another tenant is not found
  // Where to continue; absent: at the session's end. At an earlier position, the generated tokens
  // after it are dropped and computed again. So a client that lost a reply asks again from the last
  // position that it saw, and gets the same tokens.
  std::optional<int64_t> position;
  std::string mark;  // name for the position after the request; empty: none
  // The required TokenHistory::hash of the whole session; absent: any.
  std::optional<uint64_t> hash = std::nullopt;
  // The request was sent before and got no answer, so it may have had its effect already. `hash` is
  // then the hash at `position`.
  bool repeated = false;
  bool operator==(const SessionRef&) const = default;
};

// The state of a session after the tokens of a delta; in the last one, after the whole reply.
struct SessionProgress {
  int64_t position = 0;
  uint64_t hash = 0;  // TokenHistory::hash
  uint64_t seed = 0;  // in force for this request
};

// Which sessions a GetSession or ListSessions asks for.
struct SessionLookup {
  std::optional<SessionId> session;  // absent: the tenant's sessions, page by page
  int page_size = 0;                 // 0: all
  uint64_t after = 0;                // where the previous page ended; 0: from the beginning
  // Gets the sessions, and where the next page begins (`next` 0: there is none).
  std::function<void(std::vector<SessionInfo> sessions, uint64_t next)> show;
};

// Whether the changes of a request to its session are in the store that replicas share.
struct Durability {
  bool complete = true;  // the store has all of the session
  int64_t position = 0;  // the store has the session's tokens up to here
  // Not empty: the session came from a replica with this numerics id, which is not ours. Its tokens
  // were fed again here, and the tokens that follow are those of our numerics id.
  std::string other_numerics_id;
};

// Whether a request continues from a kept state of its first tokens, and keeps its own states for
// other requests.
struct PromptCacheSpec {
  bool enabled = false;
  std::string salt;                // requests of the same tenant and salt share states
  std::vector<int64_t> positions;  // also keep the states after these numbers of tokens
  bool operator==(const PromptCacheSpec&) const = default;
};

// The part of a lost reply that a client has, which a Generate continues: the fingerprint
// (reply_fingerprint.h) and [num_samples] the tokens of each sample. The tokens are fed as
// generated tokens and not sent again. With a session, SessionRef has a position and is `repeated`.
struct LostReply {
  uint64_t fingerprint = 0;
  std::vector<std::vector<int32_t>> tokens;
  bool operator==(const LostReply&) const = default;
};

// The texts around the reasoning of a sample (reasoning_counter.h).
struct Reasoning {
  std::string begin;  // "": the prompt ends within the reasoning
  std::string end;
  bool operator==(const Reasoning&) const = default;
};

// Whether the next tokens of a sample are guessed and checked in one pass. It changes no token and
// no number of a reply (model/backend.h, RunRow::drafts), only its speed.
inline constexpr size_t kMostPrediction = size_t{1} << 17;
struct Speculation {
  // The most drafts in a pass, 0 to kMostDrafts; nullopt: as many as pay (policy/speculation.h).
  std::optional<int> drafts;
  std::vector<int32_t> prediction =
      {};  // what the reply will repeat in part; kMostPrediction tokens
  bool operator==(const Speculation&) const = default;
};

// Generate: feed a prompt, then stream sampled tokens.
struct GenerateSpec {
  std::string tenant;               // whose shares it uses; with a session its tenant
  std::shared_ptr<KeyAccount> key;  // its limits apply, too; null: none
  Priority priority = Priority::kNormal;
  std::optional<SessionRef> session;  // absent: from an empty state. With one, num_samples is 1
  bool session_seed = false;          // sampling.seed is the session's seed
  PromptCacheSpec cache;
  std::vector<int32_t> prompt;  // given tokens; the implied bos is not among them
  // The first tokens of `prompt` that belong there only at position 0. With a session the position
  // is known only when the request's turn comes; without one: 0.
  size_t start_tokens = 0;
  SamplingParams sampling;
  int num_samples = 1;     // continuations of the same prompt, sample index 0..num_samples-1
  int64_t max_tokens = 0;  // per sample; 0 = the model's natural length (see Engine::Generate)
  std::vector<int32_t> stop_ids;  // beside the model's eos
  bool ignore_eos = false;
  std::vector<std::string> stop_strings;  // needs a model with a tokenizer
  bool include_stop_string = false;       // keep the matched stop string in text and tokens
  bool want_logprobs = false;
  int num_top_logprobs = 0;
  std::optional<LostReply> resume;  // absent: a new reply
  absl::Time deadline = absl::InfiniteFuture();
  std::optional<Constraint> constraint;  // of the text of each sample
  // Of each sample, the first tokens that do not end it: end tokens are not drawn, and stop strings
  // are not looked for in their text. At most max_tokens; 0 with a constraint.
  int64_t min_tokens = 0;
  bool skip_special_tokens = false;    // control tokens have no text; needs a tokenizer
  std::optional<Reasoning> reasoning;  // absent: Usage::reasoning_tokens is 0
  Speculation speculation;
};
// The fields are in the order in which ReplyFingerprint hashes them; a new field goes last.
RIVULET_FIELDS(GenerateSpec, tenant, key, priority, session, session_seed, cache, prompt,
               start_tokens, sampling, num_samples, max_tokens, stop_ids, ignore_eos,
               include_stop_string, stop_strings, want_logprobs, num_top_logprobs, resume, deadline,
               constraint, min_tokens, skip_special_tokens, reasoning, speculation)

// Score: log-likelihood of given tokens.
struct ScoreSpec {
  std::string tenant;
  std::shared_ptr<KeyAccount> key;  // or null
  Priority priority = Priority::kNormal;
  std::vector<int32_t> tokens;  // given tokens; the implied bos is not among them
  int64_t window = 0;  // 0 = one sequence; N = windows of N scored tokens, each from an empty state
  std::vector<int64_t>
      output_positions;  // scored tokens (0 = the first) whose raw outputs are wanted, any order
  bool want_logprobs = false;  // per-token log-likelihoods
  absl::Time deadline = absl::InfiniteFuture();
};

// Append: feed tokens to a session without generating. Log-likelihoods and outputs, where asked
// for, are of the predictions of the appended tokens; without bos, the first token of a sequence
// has no prediction.
struct AppendSpec {
  std::shared_ptr<KeyAccount> key;        // or null
  Priority priority = Priority::kNormal;  // the tenant is `session.tenant`
  SessionRef session;
  std::vector<int32_t> tokens;            // may be empty: then only the mark is set
  size_t start_tokens = 0;                // of `tokens`, as in GenerateSpec
  bool score = false;                     // fill nll_nats and num_scored
  std::vector<int64_t> output_positions;  // as in ScoreSpec, 0 = the first scored; needs `score`
  bool want_logprobs = false;             // needs `score`
  PromptCacheSpec cache;                  // scored tokens are fed in any case
  absl::Time deadline = absl::InfiniteFuture();
};

struct Usage {
  absl::Time arrival;                // at the engine
  int64_t prompt_tokens = 0;         // given tokens, the implied bos not counted
  int64_t cached_prompt_tokens = 0;  // prompt tokens that a kept state had seen: not fed
  int64_t completion_tokens = 0;     // over all samples, resumed tokens included
  int64_t reasoning_tokens = 0;      // of completion_tokens
  // Drafts that passes checked, and those that were right. They depend on the load.
  int64_t drafted_tokens = 0, accepted_tokens = 0;
  absl::Duration queue_time = absl::ZeroDuration();        // admission - arrival
  absl::Duration first_token_time = absl::ZeroDuration();  // first token - arrival
  absl::Duration total_time = absl::ZeroDuration();
};

struct ScoreResult {
  double nll_nats = 0;  // sum over the scored tokens
  int64_t num_scored = 0;
  std::vector<std::vector<float>>
      outputs;                  // outputs[j] belongs to output_positions[j]: [config.output_size()]
  std::vector<float> logprobs;  // [num_scored] where asked for
  std::optional<SessionProgress> session;  // of an Append
  std::optional<Durability> durability;    // likewise; none without a shared store
  int64_t cached_tokens = 0;               // of an Append: see Usage
  Usage usage;                             // prompt_tokens and times
};

enum class FinishReason : uint8_t {
  kLength,
  kStopToken,
  kStopString,
  kConstraint,  // the text of the constraint is complete, and nothing may follow
};

// Why and how one sample ended.
struct Finish {
  FinishReason reason = FinishReason::kLength;
  std::string stop_string;  // the string that matched
  int32_t stop_token = -1;  // the sampled token; it is not among the reply's tokens
};

}  // namespace rivulet
