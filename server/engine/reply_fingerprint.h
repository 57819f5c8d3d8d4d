// SPDX-License-Identifier: Apache-2.0
// The fingerprint of a reply: two requests with the same one get the same tokens, on any server. It
// covers the model (weights, config.json, numerics id), what a session holds before the request's
// position, the prompt, the seed and all that decides which tokens are drawn and where a sample
// ends. A client that lost a reply gives it back with the tokens that it has, and is refused where
// the rest would not be the same. FNV-1a, 64 bits, as sequence_hash.h: against mistakes, not
// against forgery.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "server/engine/request.h"
#include "server/sessions/session.h"
#include "server/sessions/store/state_file.h"

namespace rivulet {

// The fields of GenerateSpec and SamplingParams that ReplyFingerprint leaves out, because none of
// them changes which tokens follow.
inline constexpr absl::string_view kNotInFingerprint[] = {
    "tenant",        "key",               // who pays
    "priority",      "deadline",          // when the tokens come, and how long the client waits
    "session",       "session_seed",      // `before` covers it; sampling.seed is the seed in force
    "cache",                              // saves time alone
    "start_tokens",                       // where they do not belong, they are no longer in prompt
    "want_logprobs", "num_top_logprobs",  // what is sent beside the tokens
    "resume",                             // what the client has of the reply
};

// Of the model alone. Thread, of all: any.
uint64_t ModelFingerprint(const StateStamp& stamp);

// Of the model and a session's first `position` tokens, whose hash is `hash` (sequence_hash.h).
uint64_t SessionFingerprint(uint64_t model, const SessionId& id, int64_t position, uint64_t hash);

// `before`: SessionFingerprint, or ModelFingerprint without a session. `max_new`:
// NewTokens::asked.
uint64_t ReplyFingerprint(uint64_t before, const GenerateSpec& spec, int64_t max_new);

}  // namespace rivulet
