// SPDX-License-Identifier: Apache-2.0
// A part of a reply as a line of JSON, for `rivulet generate --json`, and its drafts in summaries.
#pragma once

#include <string>

#include "rivulet/v1/inference.pb.h"

namespace rivulet {

// One line with the field names of the proto, without unset fields; ends with a newline.
std::string PartJson(const v1::GenerateReply& part);

// ", 12 of 20 drafts accepted"; without drafts empty.
std::string DraftsSummary(const v1::Usage& usage);

}  // namespace rivulet
