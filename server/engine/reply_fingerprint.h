// SPDX-License-Identifier: Apache-2.0
// The fingerprint of a reply: two requests with the same one get the same tokens, on any server. It
// covers the model (weights, config.json, numerics id), the prompt, the seed and all that decides
// which tokens are drawn and where a sample ends. A client that lost a reply gives it back with the
// tokens that it has, and is refused where the rest would not be the same. FNV-1a, 64 bits, as
// sequence_hash.h: against mistakes, not against forgery.
#pragma once

#include <cstdint>

#include "server/engine/request.h"
#include "server/sessions/store/state_file.h"

namespace rivulet {

// Of the model alone. Thread, of both: any.
uint64_t ModelFingerprint(const StateStamp& stamp);

// `max_new`: tokens that each sample may draw, whatever set that limit. Of a session it covers id
// and position, not what comes before that: SessionRef::hash does. REQUIRES: the position is set.
uint64_t ReplyFingerprint(uint64_t model, const GenerateSpec& spec, int64_t max_new);

}  // namespace rivulet
