// SPDX-License-Identifier: Apache-2.0
// The settings of hybrids: recurrent layers, and between them layers with softmax attention.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/base/json_reader.h"
#include "model/base/strict_json.h"
#include "model/config.h"

namespace rivulet {

// Readers of BlockKind::read_settings.
absl::Status ParseGranite(JsonReader* settings, ModelConfig* config);
absl::Status ParseQwen35(JsonReader* settings, ModelConfig* config);
absl::Status ParseLfm2(JsonReader* settings, ModelConfig* config);
absl::Status ParseLfm2Moe(JsonReader* settings, ModelConfig* config);
absl::Status ParseQwen35Moe(JsonReader* settings, ModelConfig* config);
absl::Status ParseNemotron(JsonReader* settings, ModelConfig* config);
absl::Status ParseFalconH1(JsonReader* settings, ModelConfig* config);

// The config of the text model in a config.json of model_type "qwen3_5" or "qwen3_5_moe", which
// have a vision tower.
// Errors: INVALID_ARGUMENT.
absl::StatusOr<JsonValue> TextConfigOf(const JsonRules& rules, const JsonValue& config);

// Whether the file of a model of `config` may hold the unused tensor `name`: a tensor of a vision
// tower or of multi-token prediction, or a head beside a tied embedding.
bool IsSkippedTensor(const ModelConfig& config, absl::string_view name);

}  // namespace rivulet
