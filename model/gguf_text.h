// SPDX-License-Identifier: Apache-2.0
// Reads the text settings of a GGUF file (`tokenizer.*`): the tokenizer, the control tokens, the
// template for conversations, and the tokens that end a generation.
// Tested by: tests/unit/model/gguf_text_test.cc
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "model/model_text.h"
#include "model/weights/gguf_header.h"

namespace rivulet {

struct GgufText {
  ModelText text;
  // The end of a text, and the end of a turn if that is a control token: the World vocabulary ends
  // turns with an ordinary token ("\n\n"), which also stands within texts.
  std::vector<int32_t> ends;
};

// The tokenizers `rwkv` (the World vocabulary) and `gpt2` with the rules for splitting a text that
// llama.cpp calls gpt-2, mpt, olmo, llama-bpe, qwen2 and default; null if the file has none. A text
// is not normalized, as in llama.cpp. Errors: INVALID_ARGUMENT, reasons INVALID_TOKENIZER (missing,
// mistyped, inconsistent) and UNSUPPORTED_TOKENIZER (another one, by name); the field is the key.
absl::StatusOr<GgufText> ReadGgufText(const GgufMetadata& metadata);

}  // namespace rivulet
