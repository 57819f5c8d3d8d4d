// SPDX-License-Identifier: Apache-2.0
// The settings of Mamba-2's layers, of Mamba-2 itself and of hybrids with such layers.
#pragma once

#include "absl/status/status.h"
#include "model/base/json_reader.h"
#include "model/config.h"

namespace rivulet {

// A reader of BlockKind::read_settings. Errors: those of ParseBlockConfig.
absl::Status ParseMamba2(JsonReader* settings, ModelConfig* config);

// `time_step_limit` or `dt_limit`, numbers from 0 or infinity: the least and the greatest dt.
// Errors: INVALID_ARGUMENT.
absl::Status ParseTimeStepLimit(JsonReader* settings, ModelConfig* config);

}  // namespace rivulet
