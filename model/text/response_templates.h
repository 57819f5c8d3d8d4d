// SPDX-License-Identifier: Apache-2.0
// Response templates for checkpoints without one: how a reply in a conversation is divided into
// reasoning, content and tool calls. The form is that of Hugging Face's transformers 5.24.
// Tested by: tests/unit/model/model_text_test.cc
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace rivulet {

struct ResponseTemplate {
  std::string json;  // an object; "": there is none
  std::string name;  // of a built-in one; "": the json is from a file
};

// Of models that write tool calls as these texts show. `model_type`: ModelConfig::kind(). `shown`:
// the chat template and the control tokens. nullopt: nobody has said how such a model's replies are
// divided.
std::optional<ResponseTemplate> BuiltInResponseTemplate(absl::string_view model_type,
                                                        absl::string_view shown);

}  // namespace rivulet
