// SPDX-License-Identifier: Apache-2.0
// The bytes of tokens, one after another.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "model/text/text_tokenizer.h"

namespace rivulet::testing {

inline std::string TextOf(const TextTokenizer& tokenizer, std::span<const int32_t> ids) {
  std::string text;
  for (const int32_t id : ids) text += std::string(tokenizer.TokenBytes(id));
  return text;
}

}  // namespace rivulet::testing
