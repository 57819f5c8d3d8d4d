// SPDX-License-Identifier: Apache-2.0
// The mask that keeps the tokens that end a sample from its first tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/backend.h"

namespace rivulet {

// Allows every token that is not in a list. Thread: immutable, any thread.
class EndMask final : public TokenMask {
 public:
  // REQUIRES: the tokens are in [0, vocab_size).
  EndMask(std::span<const int32_t> end_tokens, int vocab_size)
      : bits_(MaskWords(vocab_size), ~uint32_t{0}) {
    for (const int32_t token : end_tokens) {
      bits_[static_cast<size_t>(token) / 32] &= ~(uint32_t{1} << (token % 32));
    }
  }
  std::span<const uint32_t> Bits() const override { return bits_; }

 private:
  std::vector<uint32_t> bits_;
};

}  // namespace rivulet
