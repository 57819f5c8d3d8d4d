// SPDX-License-Identifier: Apache-2.0
// Sessions as lines of JSON, for `rivulet sessions --json`, and in summaries.
#pragma once

#include <string>

#include "rivulet/v1/session_service.pb.h"

namespace rivulet {

// One line with the field names of the proto, durations in seconds, the hash as 16 hexadecimal
// digits, and `cookie` if it is not empty; ends with a newline.
std::string SessionJson(const v1::Session& session, const std::string& cookie);

// The same for the reply of Append; with the scores if `scored`.
std::string AppendJson(const v1::AppendReply& reply, bool scored);

// "durable", or "not durable after position 12".
std::string DurabilitySummary(const v1::Durability& durability);

}  // namespace rivulet
