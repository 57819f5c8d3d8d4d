// SPDX-License-Identifier: Apache-2.0
// A tokenizer that only decodes: the test gives the bytes of token i.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/text/text_tokenizer.h"

namespace rivulet {

// The last token is a control token. Thread: immutable, any thread.
class PieceTokenizer final : public TextTokenizer {
 public:
  explicit PieceTokenizer(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}
  absl::StatusOr<TextTokens> Encode(absl::string_view, const EncodeOptions&,
                                    TextBudget*) const override {
    return absl::UnimplementedError("this tokenizer only decodes");
  }
  absl::string_view TokenBytes(int32_t id) const override {
    return id >= 0 && id < size() ? absl::string_view(pieces_[static_cast<size_t>(id)]) : "";
  }
  bool IsSpecial(int32_t id) const override { return id + 1 == size(); }
  bool adds_leading_space() const override { return true; }
  int size() const override { return static_cast<int>(pieces_.size()); }

 private:
  const std::vector<std::string> pieces_;
};

}  // namespace rivulet
