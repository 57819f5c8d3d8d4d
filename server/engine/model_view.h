// SPDX-License-Identifier: Apache-2.0
// ModelView: what the engine knows about the model.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "model/text/text_tokenizer.h"

namespace rivulet {

// Borrowed.
struct ModelView {
  const ModelConfig* config = nullptr;
  const TextTokenizer* tokenizer = nullptr;  // null: no text
  uint64_t fingerprint = 0;                  // ModelFingerprint (reply_fingerprint.h)
};

}  // namespace rivulet
