// SPDX-License-Identifier: Apache-2.0
// What the metadata of a GGUF file says about text (`tokenizer.*`): the tokenizer, the control
// tokens, the template for conversations, and where a generation ends.
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
  // The end of a text, and of a turn where a control token ends it: in the World vocabulary an
  // ordinary one does ("\n\n"), which stands within texts, too.
  std::vector<int32_t> ends;
};

// The tokenizers `rwkv` (the World vocabulary) and `gpt2` with the rules for splitting a text that
// llama.cpp calls gpt-2, mpt, olmo, llama-bpe, qwen2 and default; none where the file has none. A
// text is not normalized before: llama.cpp does not either. Errors: INVALID_ARGUMENT, reasons
// INVALID_TOKENIZER (missing, mistyped, inconsistent) and UNSUPPORTED_TOKENIZER (another one, by
// name); the field is the key.
absl::StatusOr<GgufText> ReadGgufText(const GgufMetadata& metadata);

}  // namespace rivulet
