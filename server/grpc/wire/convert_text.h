// SPDX-License-Identifier: Apache-2.0
// Converts the texts of requests to tokens, and tokens to text.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/model.h"
#include "model/text/text_budget.h"
#include "rivulet/v1/inference.pb.h"
#include "server/engine/request.h"

namespace rivulet {

// The options of a request for its text; absent ones follow from the position of the text.
struct TextOptions {
  std::optional<bool> add_special_tokens = std::nullopt;
  std::optional<bool> parse_special_tokens = std::nullopt;
};

template <typename Request>
TextOptions TextOptionsOf(const Request& request) {
  TextOptions options;
  if (request.has_add_special_tokens()) options.add_special_tokens = request.add_special_tokens();
  if (request.has_parse_special_tokens()) {
    options.parse_special_tokens = request.parse_special_tokens();
  }
  return options;
}

// The tokens that a request gives, as ids or as text.
struct GivenTokens {
  std::vector<int32_t> ids;
  size_t start = 0;  // the first `start` of them belong there only at position 0
};

// The tokens of a text at `position` of its sequence; absent: the position is known only later.
// Tokens that the tokenizer adds behind a text, such as the end of a sequence, are among them only
// if the options say so.
// Errors: INVALID_ARGUMENT naming `field`: TEXT_NOT_SUPPORTED (the model has no tokenizer),
// TEXT_NOT_IN_VOCABULARY (also for a token that the tokenizer has and the model has not),
// and the other errors of TextTokenizer::Encode; the error of `stopped`.
absl::StatusOr<GivenTokens> TokensOfText(absl::string_view text, const Model& model,
                                         absl::string_view field, const TextOptions& options,
                                         std::optional<int64_t> position,
                                         const TextBudget::Stopped& stopped = nullptr);

// INVALID_ARGUMENT (NEEDS_TEXT) where a request without a text has options for one. `field`: where
// the text would be.
absl::Status CheckNoTextOptions(const TextOptions& options, absl::string_view field);

// The bytes of a request to convert, those of a constraint and of a prediction among them; each id
// counts as four bytes.
template <typename Request>
int64_t TextBytes(const Request& request) {
  return request.has_text() ? static_cast<int64_t>(request.text().size()) : 0;
}
inline int64_t TextBytes(const v1::GenerateRequest& request) {
  const size_t constraint = request.has_constraint() ? request.constraint().ByteSizeLong() : 0;
  const size_t prediction = request.speculation().text().size();
  return static_cast<int64_t>(request.text().size() + constraint + prediction);
}
inline int64_t TextBytes(const v1::TokenizeRequest& request) {
  return static_cast<int64_t>(request.text().size());
}
inline int64_t TextBytes(const v1::DetokenizeRequest& request) {
  return int64_t{4} * request.ids_size();
}

// The most bytes of the text of a DetokenizeReply, the bytes beside the text included.
inline constexpr size_t kMaxDetokenizedBytes = size_t{32} << 20;

// The answers of Tokenize and Detokenize. Errors: INVALID_ARGUMENT naming the field: the errors of
// TokensOfText, TOKEN_OUT_OF_RANGE for an id that neither model nor tokenizer has, and
// TEXT_TOO_LONG if the text of the ids is too long. Both change nothing but *reply.
absl::Status Tokenize(const v1::TokenizeRequest& request, const Model& model,
                      const TextBudget::Stopped& stopped, v1::TokenizeReply* reply);
absl::Status Detokenize(const v1::DetokenizeRequest& request, const Model& model,
                        const TextBudget::Stopped& stopped, v1::DetokenizeReply* reply);

}  // namespace rivulet
