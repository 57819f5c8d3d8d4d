// SPDX-License-Identifier: Apache-2.0
// The settings of a config.json in the layout of flash-linear-attention or transformers, and their
// effect on the mathematics.
//
// Every setting is applied, harmless (training, other programs' speed, another spelling) or
// refused. A setting that is in no list ends the parse unless it is null or false, so that no
// setting that changes the numbers is ignored.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/base/strict_json.h"
#include "model/config.h"

namespace rivulet {

// `text` as JSON. A bare Infinity, which older versions of transformers write, counts as
// {"__float__": "Infinity"}, which newer ones write. Errors: those of ParseStrictJson.
absl::StatusOr<JsonValue> ParseSettings(absl::string_view text);

// The `eos_token_id` of a config.json or generation_config.json, a number or a list; empty where
// there is none. Errors: INVALID_ARGUMENT (INVALID_CONFIG: no token id).
absl::StatusOr<std::vector<int32_t>> ParseEosTokenIds(const JsonValue& config, int vocab_size);

// Whether a configuration is of this layout: it has a `model_type`.
bool HasModelType(const JsonValue& config);

// The names under `architectures`, quoted, for messages; "" where there are none.
std::string ArchitecturesOf(const JsonValue& config);

// Errors: INVALID_ARGUMENT, naming the setting and its value; reasons INVALID_CONFIG (missing,
// mistyped, out of range, inconsistent) and UNSUPPORTED_MODEL (a kind or a setting that other
// programs support and we do not, such as softmax layers). `name` and `content` stay empty.
absl::StatusOr<ModelConfig> ParseBlockConfig(const JsonValue& config);

}  // namespace rivulet
