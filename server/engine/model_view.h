// SPDX-License-Identifier: Apache-2.0
// ModelView: what the engine knows about the model.
#pragma once

#include "model/config.h"
#include "model/text/text_tokenizer.h"

namespace rivulet {

// Borrowed.
struct ModelView {
  const ModelConfig* config = nullptr;
  const TextTokenizer* tokenizer = nullptr;  // null: no text
};

}  // namespace rivulet
