// SPDX-License-Identifier: Apache-2.0
// The input of `rivulet score`: JSON lines, IDX images, or a text file. Read one item at a time,
// whatever the size of the input.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "client/cli/options/options.h"
#include "client/cli/output/score_line.h"
#include "rivulet/v1/inference.pb.h"

namespace rivulet {

struct ScoreItem {
  ScoreContent content;
  std::string where;  // "FILE:N", for messages
  // The next item belongs to the same result: their log-likelihoods and counts are added.
  bool continues = false;
  std::string id = {};       // JSON; empty: it has none
  absl::Status status = {};  // INVALID_ARGUMENT: this line is wrong, and `content` means nothing
};

// Thread: one.
class ScoreInput {
 public:
  virtual ~ScoreInput() = default;

  // The next item; nullopt at the end. Errors: INVALID_ARGUMENT with the place; no item can follow.
  virtual absl::StatusOr<std::optional<ScoreItem>> Next() = 0;

  // Whether Next() returns without waiting for the writer of the input.
  virtual bool ready() { return true; }

  // Bytes of the text that the scored tokens stand for; 0: the input is not a text file.
  virtual int64_t text_bytes() const { return 0; }

  // Number of all items, or, of a text, of all scored tokens; nullopt: not known beforehand.
  virtual std::optional<int64_t> total() const { return std::nullopt; }
  virtual bool is_text() const { return false; }
};

// The tokens of a text that begins a sequence.
using TokenizeText = absl::FunctionRef<absl::StatusOr<v1::TokenizeReply>(std::string text)>;

// Opens the input that `options` name. A text is tokenized once, as a whole; but if each code point
// is a token, the server tokenizes it. A text of more than a few windows becomes several items of
// whole windows, unless outputs are requested. So progress can be shown, and no message is too
// long. Errors: NOT_FOUND (cannot be opened); INVALID_ARGUMENT (wrong format, or images of another
// shape than the model's); the errors of `tokenize`.
absl::StatusOr<std::unique_ptr<ScoreInput>> OpenScoreInput(const ScoreOptions& options,
                                                           const v1::GetModelReply& model,
                                                           TokenizeText tokenize);

}  // namespace rivulet
