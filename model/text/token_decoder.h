// SPDX-License-Identifier: Apache-2.0
// `decoder` of tokenizer.json: the bytes of text for a token. ByteLevel, Metaspace, and a Sequence
// of these with Replace, ByteFallback, Fuse and, behind Fuse, Strip of one leading space. Tested
// by: tests/unit/model/text/tokenizer_json_test.cc, tests/e2e/cli/tokenizer_test.py
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/base/strict_json.h"
#include "model/text/text_budget.h"

namespace rivulet {

// Thread: const calls from any thread.
class TokenDecoder {
 public:
  // Errors: INVALID_TOKENIZER, UNSUPPORTED_TOKENIZER. A file without a decoder is an error: other
  // programs then put spaces between tokens.
  static absl::StatusOr<TokenDecoder> Create(const JsonValue* value, absl::string_view path);

  // The bytes of a token of the model's vocabulary. With ByteLevel a token that has characters
  // outside of the byte alphabet stands for itself.
  // Errors: TextBudget::status(), if a step makes the token too long.
  absl::StatusOr<std::string> BytesOf(absl::string_view token, TextBudget* budget) const;

  // Whether one leading space is removed from the text of a whole sequence.
  bool strips_leading_space() const { return strips_leading_space_; }

 private:
  struct Step {
    enum class Kind { kByteLevel, kByteFallback, kReplace };
    Kind kind = Kind::kByteLevel;
    std::string pattern, content;  // kReplace
  };
  absl::Status Add(const JsonValue& value, absl::string_view path, bool* fused);
  absl::Status AddReplace(const JsonValue& value, absl::string_view path);
  absl::Status AddMetaspace(const JsonValue& value, absl::string_view path);
  absl::Status AddStrip(const JsonValue& value, absl::string_view path, bool fused);
  absl::Status AddList(const JsonValue& value, absl::string_view path, bool* fused);

  std::vector<Step> steps_;
  bool strips_leading_space_ = false;
};

}  // namespace rivulet
