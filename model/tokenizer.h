// SPDX-License-Identifier: Apache-2.0
// Tokenizer: text to token ids and back, for models whose content is text. Version 1 of the format
// has one kind, `char`: id = index of the Unicode code point in the alphabet.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rivulet {

// Thread: immutable, any thread.
class Tokenizer {
 public:
  // `alphabet`: UTF-8, every code point once. Errors: INVALID_ARGUMENT (bad UTF-8, duplicate,
  // empty).
  static absl::StatusOr<Tokenizer> CreateChar(absl::string_view alphabet);

  // Ids of `text`. Errors: INVALID_ARGUMENT naming the first code point (and its byte offset) that
  // is not in the alphabet, or the byte offset of bad UTF-8.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const;

  // UTF-8 of one token; "" for an id outside the alphabet (bos, eos).
  absl::string_view Decode(int32_t id) const;
  std::string Decode(std::span<const int32_t> ids) const;

  int size() const { return static_cast<int>(pieces_.size()); }

 private:
  std::vector<std::string> pieces_;
  std::unordered_map<uint32_t, int32_t> ids_;  // code point -> id
};

}  // namespace rivulet
