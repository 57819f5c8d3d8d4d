// SPDX-License-Identifier: Apache-2.0
// The fingerprint of a reply: two requests with the same fingerprint get the same tokens, on any
// server. It covers the model (weights, config.json, numerics id), the session's content before the
// request's position, the prompt, the seed and everything that decides which tokens are drawn and
// where a sample ends. A client that lost a reply sends the fingerprint back with the tokens that
// it has, and is refused if the rest would differ. FNV-1a, 64 bits, as sequence_hash.h: this
// protects against mistakes, not against forgery.
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
    "priority",      "deadline",          // when tokens come, and how long the client waits
    "session",       "session_seed",      // `before` covers it; sampling.seed is the seed in force
    "cache",                              // only saves time
    "start_tokens",                       // no longer in `prompt` where they do not belong
    "want_logprobs", "num_top_logprobs",  // sent beside the tokens
    "reasoning",                          // only counts tokens
    "speculation",                        // only saves time
    "resume",                             // the part of the reply that the client has
};

// Of the model alone. Thread, for all three functions: any.
uint64_t ModelFingerprint(const StateStamp& stamp);

// Of the model and a session's first `position` tokens, whose hash is `hash` (sequence_hash.h).
uint64_t SessionFingerprint(uint64_t model, const SessionId& id, int64_t position, uint64_t hash);

// `before`: SessionFingerprint, or ModelFingerprint without a session. `max_new`:
// NewTokens::asked.
uint64_t ReplyFingerprint(uint64_t before, const GenerateSpec& spec, int64_t max_new);

}  // namespace rivulet
