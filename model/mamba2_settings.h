// SPDX-License-Identifier: Apache-2.0
// The settings of Mamba-2's layers, of Mamba-2 itself and of hybrids with such layers.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "model/base/json_reader.h"
#include "model/config.h"

namespace rivulet {

// A reader of BlockKind::read_settings. Errors: those of ParseBlockConfig.
absl::Status ParseMamba2(JsonReader* settings, ModelConfig* config);

// What all kinds with Mamba-2 share, once their sizes are read: groups that divide the heads, an
// output gate, and `time_step_limit` or `dt_limit` (the least and the greatest dt, from 0 or
// infinity). `groups` and `heads` name the settings of these sizes. Errors: INVALID_ARGUMENT.
absl::Status FinishMamba2(JsonReader* settings, absl::string_view groups, absl::string_view heads,
                          ModelConfig* config);

}  // namespace rivulet
