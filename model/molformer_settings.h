// SPDX-License-Identifier: Apache-2.0
// The settings of a directory of transformers with model_type "molformer", IBM's GP-MoLFormer
// [Ross 2024, arXiv:2405.04912], which was trained with pytorch-fast-transformers. It becomes a
// model of kind "linear" (model/FORMAT.md):
//   positions rotary, pairs "halves", base 10000; map generalized_random with softmax_temp 1;
//   normalizer clamp_min; final_norm; output with a transform, and a head without bias.
// The published code draws a new omega in every pass unless `deterministic_eval` is true. Here the
// omega of the file is always used.
#pragma once

#include "absl/status/statusor.h"
#include "model/base/json_reader.h"
#include "model/config.h"

namespace rivulet {

inline constexpr char kMolformer[] = "molformer";  // model_type

// Errors: those of ParseBlockConfig; UNSUPPORTED_MODEL, too, for MoLFormer's encoder, which has no
// causal form, and for cross-attention. `name` and `content` stay empty; token 1 ends a generation,
// as in the published code. `settings`: a reader of `json`.
absl::StatusOr<ModelConfig> ParseMolformer(const JsonValue& json, JsonReader* settings);

}  // namespace rivulet
