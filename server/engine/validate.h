// SPDX-License-Identifier: Apache-2.0
// Checks of requests against the model, the backend's limits and the engine's options. Every error
// names the field, what it held and what is allowed; docs/api.md lists the reasons.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "model/backend.h"
#include "server/engine/options.h"
#include "server/engine/request.h"

namespace rivulet {

absl::Status ValidateGenerate(const GenerateSpec& spec, const ModelView& model,
                              const BackendLimits& limits, const EngineOptions& options);

// How many tokens each sample may draw (see Engine::Generate); 0: none.
struct NewTokens {
  int64_t most = 0;
  // The same without the limit of this server's slots: replicas with other slots agree on it.
  int64_t asked = 0;
};

// After `given` tokens of the sequence. REQUIRES: `spec` is valid.
NewTokens MaxNewTokens(const GenerateSpec& spec, int64_t given, const ModelView& model,
                       const EngineOptions& options);

// The same before the session is known: exact without a session or with a set position, else an
// upper limit. REQUIRES: `spec` is valid.
NewTokens MostNewTokens(const GenerateSpec& spec, const ModelView& model,
                        const EngineOptions& options);

// The tokens that end a sample.
std::vector<int32_t> EndTokens(const GenerateSpec& spec, const ModelConfig& config);

// Checks spec.resume further. `max_new`: NewTokens::most. `fingerprint`: of the reply that `spec`
// asks for. Errors: FAILED_PRECONDITION (RESUME_MISMATCH), INVALID_ARGUMENT.
absl::Status CheckResume(const GenerateSpec& spec, const ModelConfig& config, int64_t max_new,
                         uint64_t fingerprint);

// The largest allowed GenerateSpec::num_samples.
int64_t MaxNumSamples(const BackendLimits& limits, const EngineOptions& options);

// The error for a repeated call on a session without a position: it would feed the session twice
// and continue after tokens that the client never saw.
absl::Status PositionNeeded();

// Constraint::begin_position of `spec` is among the `given` tokens of the sequence, with the
// prompt.
absl::Status CheckConstraintBegin(const GenerateSpec& spec, int64_t given);

// What limits the length of a sequence.
enum class LimitOf : uint8_t {
  kModel,     // the positions that the model can represent
  kContext,   // the room of a slot
  kSessions,  // SessionLimits::max_tokens
};

// The error (TOO_MANY_TOKENS) for more than `limit` tokens in a sequence. `has` says what has too
// many tokens, how many and where; `remedy` says what the client can do.
absl::Status TooManyTokens(absl::string_view field, absl::string_view has, int64_t limit,
                           LimitOf of, absl::string_view remedy);

// The error for an empty prompt of a model without bos, which has nothing to begin with.
absl::Status EmptyPrompt();

absl::Status ValidateAppend(const AppendSpec& spec, const ModelView& model,
                            const EngineOptions& options);

absl::Status ValidateScore(const ScoreSpec& spec, const ModelView& model,
                           const EngineOptions& options);

// The most output_positions of one Score that the options allow for a head of this width.
int64_t MaxScoreOutputs(const EngineOptions& options, const ModelConfig& config);

}  // namespace rivulet
