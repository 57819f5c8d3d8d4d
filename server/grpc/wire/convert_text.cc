// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/wire/convert_text.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"
#include "model/text/text_decoder.h"

namespace rivulet {
namespace {

// The number of ids between two checks whether to go on.
constexpr int kIdsPerQuestion = 1 << 14;
// Up to this number of ids Detokenize says where each ends; more ends take more than the ids.
constexpr int kMaxEnds = 1 << 16;

absl::Status Ask(const TextBudget::Stopped& stopped) {
  return stopped == nullptr ? absl::OkStatus() : stopped();
}

// Adds the field to errors of the text, but not to the error with which the call ends.
absl::Status WithField(const absl::Status& status, absl::string_view field) {
  if (!absl::IsInvalidArgument(status)) return status;
  ErrorDetail detail = GetErrorDetail(status);
  detail.field = std::string(field);
  return MakeError(status.code(), status.message(), detail);
}

// OK if the model's content is text.
absl::Status CheckHasText(const Model& model, absl::string_view field) {
  if (model.tokenizer() != nullptr) return absl::OkStatus();
  return InvalidField("TEXT_NOT_SUPPORTED", field,
                      absl::StrCat(field, " is given, but model \"", model.config().name,
                                   "\" has no tokenizer", model.text().why_none));
}

// A tokenizer may have tokens without an embedding in the model.
absl::Status CheckIds(const TextTokens& tokens, const Model& model, absl::string_view field) {
  const int limit = model.config().vocab_size;
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    const int32_t id = tokens.ids[i];
    if (id < limit) continue;
    return InvalidField(
        "TEXT_NOT_IN_VOCABULARY", field,
        absl::StrCat(field, ": at byte ", tokens.spans[i].begin, " is token ", id, " (",
                     Quoted(model.tokenizer()->TokenBytes(id)), "); the tokens of model ",
                     Quoted(model.config().name), " are 0 to ", limit - 1));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GivenTokens> TokensOfText(absl::string_view text, const Model& model,
                                         absl::string_view field, const TextOptions& options,
                                         std::optional<int64_t> position,
                                         const TextBudget::Stopped& stopped) {
  RIVULET_RETURN_IF_ERROR(CheckHasText(model, field));
  // At position 0 the tokens before a text are a prompt on their own.
  const bool may_begin = position ? *position == 0 : !text.empty();
  EncodeOptions encode;
  encode.add_special_tokens = options.add_special_tokens.value_or(may_begin);
  encode.parse_special_tokens = options.parse_special_tokens.value_or(true);
  TextBudget budget(text.size(), stopped);
  RIVULET_RETURN_IF_ERROR(Ask(stopped));
  absl::StatusOr<TextTokens> tokens = model.tokenizer()->Encode(text, encode, &budget);
  if (!tokens.ok()) return WithField(tokens.status(), field);
  // A token behind the text would end it.
  if (!options.add_special_tokens) tokens->ids.resize(tokens->ids.size() - tokens->added_behind);
  RIVULET_RETURN_IF_ERROR(CheckIds(*tokens, model, field));
  GivenTokens given;
  given.ids = std::move(tokens->ids);
  if (!options.add_special_tokens && !position) given.start = tokens->added_before;
  return given;
}

absl::Status CheckNoTextOptions(const TextOptions& options, absl::string_view field) {
  if (!options.add_special_tokens && !options.parse_special_tokens) return absl::OkStatus();
  const absl::string_view name =
      options.add_special_tokens ? "add_special_tokens" : "parse_special_tokens";
  const bool value =
      options.add_special_tokens.value_or(options.parse_special_tokens.value_or(false));
  return InvalidField("NEEDS_TEXT", name,
                      absl::StrCat(name, " is ", value ? "true" : "false", ", but ", field,
                                   " is not given; it says how that becomes tokens"));
}

absl::Status Tokenize(const v1::TokenizeRequest& request, const Model& model,
                      const TextBudget::Stopped& stopped, v1::TokenizeReply* reply) {
  RIVULET_RETURN_IF_ERROR(CheckHasText(model, "text"));
  const TextOptions options = TextOptionsOf(request);
  EncodeOptions encode;
  encode.add_special_tokens = options.add_special_tokens.value_or(true);
  encode.parse_special_tokens = options.parse_special_tokens.value_or(true);
  TextBudget budget(request.text().size(), stopped);
  RIVULET_RETURN_IF_ERROR(Ask(stopped));
  RIVULET_ASSIGN_OR_RETURN(TextTokens tokens,
                           model.tokenizer()->Encode(request.text(), encode, &budget));
  reply->mutable_ids()->Add(tokens.ids.begin(), tokens.ids.end());
  reply->set_added_behind(static_cast<int32_t>(tokens.added_behind));
  std::vector<int32_t>().swap(tokens.ids);
  reply->mutable_begins()->Reserve(static_cast<int>(tokens.spans.size()));
  reply->mutable_ends()->Reserve(static_cast<int>(tokens.spans.size()));
  for (const SourceSpan span : tokens.spans) {
    reply->add_begins(span.begin);
    reply->add_ends(span.end);
  }
  return absl::OkStatus();
}

absl::Status Detokenize(const v1::DetokenizeRequest& request, const Model& model,
                        const TextBudget::Stopped& stopped, v1::DetokenizeReply* reply) {
  RIVULET_RETURN_IF_ERROR(CheckHasText(model, "ids"));
  const TextTokenizer& tokenizer = *model.tokenizer();
  const int limit = std::max(model.config().vocab_size, tokenizer.size());
  TextDecoder decoder(&tokenizer,
                      {.at_start = true, .skip_special_tokens = request.skip_special_tokens()});
  std::string text, bytes;
  const bool tells_ends = request.ids_size() <= kMaxEnds;
  for (int i = 0; i < request.ids_size(); ++i) {
    if (i % kIdsPerQuestion == 0) RIVULET_RETURN_IF_ERROR(Ask(stopped));
    const int32_t id = request.ids(i);
    if (id < 0 || id >= limit) {
      const std::string name = absl::StrCat("ids[", i, "]");
      return InvalidField(
          "TOKEN_OUT_OF_RANGE", name,
          absl::StrCat(name, " is ", id, "; token ids here are 0 to ", limit - 1, "."));
    }
    decoder.Add(id, &text);
    const bool is_skipped = request.skip_special_tokens() && tokenizer.IsSpecial(id);
    if (!is_skipped) absl::StrAppend(&bytes, tokenizer.TokenBytes(id));
    if (text.size() + bytes.size() > kMaxDetokenizedBytes) {
      return InvalidField("TEXT_TOO_LONG", "ids",
                          absl::StrCat("the text of the first ", i + 1, " of ", request.ids_size(),
                                       " ids, with its bytes, has more than ", kMaxDetokenizedBytes,
                                       " bytes; send fewer ids"));
    }
    if (tells_ends) reply->add_ends(static_cast<int64_t>(bytes.size()));
  }
  decoder.Finish(&text);
  reply->set_text(std::move(text));
  reply->set_raw_bytes(std::move(bytes));
  return absl::OkStatus();
}

}  // namespace rivulet
