// SPDX-License-Identifier: Apache-2.0
// The steps of a text: unnormalized added tokens | normalizer | normalized added tokens |
// pre-tokenizer | merges within each piece | post-processor.
#include <algorithm>
#include <functional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"
#include "model/base/utf8.h"
#include "model/text/added_tokens.h"
#include "model/text/bpe.h"
#include "model/text/normalizer.h"
#include "model/text/post_processor.h"
#include "model/text/pre_tokenizer.h"
#include "model/text/text_tokenizer.h"
#include "model/text/token_decoder.h"
#include "model/text/tokenizer_rules.h"

namespace rivulet {
namespace {

// The deepest known files have 6 levels; a vocabulary of 250,000 tokens with its merges as pairs
// has a million values.
constexpr JsonLimits kLimits = {.max_depth = 16, .max_values = 2'000'000};

struct Parts {
  BpeModel model;
  Normalizer normalizer;
  AddedTokens added;
  PreTokenizer pre_tokenizer;
  PostProcessor post_processor;
  TokenDecoder decoder;
};

absl::Status AddToken(int32_t id, SourceSpan span, TextBudget* budget, TextTokens* tokens) {
  if (!budget->Take(kBytesPerToken)) return budget->status();
  tokens->ids.push_back(id);
  tokens->spans.push_back(span);
  return absl::OkStatus();
}

class JsonTokenizer : public TextTokenizer {
 public:
  // `bytes`: the bytes of each token of the model.
  JsonTokenizer(Parts parts, std::vector<std::string> bytes)
      : parts_(std::move(parts)), bytes_(std::move(bytes)) {
    int32_t largest = parts_.post_processor.largest_id();
    for (const AddedToken& token : parts_.added.tokens()) largest = std::max(largest, token.id);
    bytes_.resize(std::max(bytes_.size(), static_cast<size_t>(largest + 1)));
    is_special_.resize(bytes_.size());
    for (const AddedToken& token : parts_.added.tokens()) {
      bytes_[static_cast<size_t>(token.id)] = token.content;
      is_special_[static_cast<size_t>(token.id)] = token.special;
      added_.insert(token.id);
    }
  }

  absl::StatusOr<TextTokens> Encode(absl::string_view text, const EncodeOptions& options,
                                    TextBudget* budget) const override;

  absl::string_view TokenBytes(int32_t id) const override {
    return Has(id) ? absl::string_view(bytes_[static_cast<size_t>(id)]) : "";
  }
  bool IsSpecial(int32_t id) const override {
    return Has(id) && is_special_[static_cast<size_t>(id)];
  }
  bool adds_leading_space() const override { return parts_.decoder.strips_leading_space(); }
  int size() const override { return static_cast<int>(bytes_.size()); }

 private:
  bool Has(int32_t id) const { return id >= 0 && id < size(); }
  // Encodes a piece of `text`, which maps to a part of `source`.
  static absl::Status EncodePiece(const AlignedText& text, TextRange piece,
                                  absl::string_view source, BpeEncoder* encoder, TextBudget* budget,
                                  TextTokens* tokens);
  // Encodes a range of `source` without raw added tokens.
  absl::Status EncodeStretch(absl::string_view source, TextRange stretch,
                             const EncodeOptions& options, TextBudget* budget,
                             TextTokens* tokens) const;

  const Parts parts_;
  absl::flat_hash_set<int32_t> added_;  // ids
  std::vector<std::string> bytes_;      // [size()]
  std::vector<bool> is_special_;        // [size()]
};

absl::Status JsonTokenizer::EncodePiece(const AlignedText& text, TextRange piece,
                                        absl::string_view source, BpeEncoder* encoder,
                                        TextBudget* budget, TextTokens* tokens) {
  RIVULET_ASSIGN_OR_RETURN(const size_t known, encoder->Encode(text.text(piece)));
  if (piece.begin + known < piece.end) {
    const uint32_t at = text.span(piece.begin + known).begin;
    uint32_t code_point = 0;
    DecodeUtf8(source.substr(at), &code_point);
    return InvalidField("TEXT_NOT_IN_VOCABULARY", "text",
                        absl::StrFormat("the text holds U+%04X at byte %d, which the model's "
                                        "vocabulary cannot express",
                                        code_point, at));
  }
  if (!budget->Take(encoder->tokens().size() * kBytesPerToken)) return budget->status();
  size_t begin = piece.begin;
  for (const BpeToken& token : encoder->tokens()) {
    tokens->ids.push_back(token.id);
    tokens->spans.push_back(text.Source({begin, begin + token.bytes}));
    begin += token.bytes;
  }
  return absl::OkStatus();
}

absl::Status JsonTokenizer::EncodeStretch(absl::string_view source, TextRange stretch,
                                          const EncodeOptions& options, TextBudget* budget,
                                          TextTokens* tokens) const {
  const size_t size = stretch.end - stretch.begin;
  RIVULET_ASSIGN_OR_RETURN(
      const AlignedText text,
      parts_.normalizer.Apply(
          AlignedText(source.substr(stretch.begin, size), static_cast<uint32_t>(stretch.begin)),
          budget));
  BpeEncoder encoder(parts_.model, budget);
  const auto encode = [&](const AlignedText& cut, TextRange piece) {
    return EncodePiece(cut, piece, source, &encoder, budget, tokens);
  };
  RIVULET_RETURN_IF_ERROR(parts_.added.Split(
      text.text(), true, options.parse_special_tokens, budget, [&](AddedSegment segment) {
        if (segment.id < 0) return parts_.pre_tokenizer.Cut(text, segment.range, budget, encode);
        return AddToken(segment.id, text.Source(segment.range), budget, tokens);
      }));
  budget->Give(text.budgeted());
  return absl::OkStatus();
}

absl::StatusOr<TextTokens> JsonTokenizer::Encode(absl::string_view text,
                                                 const EncodeOptions& options,
                                                 TextBudget* budget) const {
  RIVULET_RETURN_IF_ERROR(CheckText(text));
  TextTokens tokens;
  RIVULET_RETURN_IF_ERROR(parts_.added.Split(
      text, false, options.parse_special_tokens, budget, [&](AddedSegment segment) {
        if (segment.id < 0) return EncodeStretch(text, segment.range, options, budget, &tokens);
        return AddToken(
            segment.id,
            {static_cast<uint32_t>(segment.range.begin), static_cast<uint32_t>(segment.range.end)},
            budget, &tokens);
      }));
  const auto spelled = [this, text](int32_t id, SourceSpan span) -> absl::string_view {
    if (added_.contains(id)) return text.substr(span.begin, span.end - span.begin);
    const auto at = static_cast<size_t>(id);
    if (at >= parts_.model.tokens().size()) return "";
    return parts_.model.tokens()[at];
  };
  RIVULET_RETURN_IF_ERROR(parts_.post_processor.Apply(
      text, options.at_start && options.add_special_tokens, spelled, budget, &tokens));
  return tokens;
}

// The bytes of each token of `model`.
absl::StatusOr<std::vector<std::string>> DecodeVocabulary(const BpeModel& model,
                                                          const TokenDecoder& decoder) {
  size_t size = 0;
  for (const std::string& token : model.tokens()) size += 1 + token.size();
  TextBudget budget(size);
  std::vector<std::string> bytes;
  bytes.reserve(model.tokens().size());
  for (const std::string& token : model.tokens()) {
    absl::StatusOr<std::string> decoded = decoder.BytesOf(token, &budget);
    if (!decoded.ok() || !budget.Take(decoded->size())) {
      return kTokenizerRules.Invalid("decoder", "does too much for the token ", Quoted(token),
                                     " of model.vocab: ", budget.status().message());
    }
    bytes.push_back(*std::move(decoded));
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TextTokenizer>> ParseTokenizerJson(
    absl::string_view json, std::vector<std::string>* ignored) {
  if (json.size() > kMaxTokenizerBytes) {
    return InvalidField("INVALID_TOKENIZER", "",
                        absl::StrCat("the file has ", json.size(), " bytes; allowed: at most ",
                                     kMaxTokenizerBytes));
  }
  RIVULET_ASSIGN_OR_RETURN(const JsonValue root, ParseStrictJson(json, kLimits));
  return CreateJsonTokenizer(root, ignored);
}

absl::StatusOr<std::unique_ptr<TextTokenizer>> CreateJsonTokenizer(
    const JsonValue& root, std::vector<std::string>* ignored) {
  RIVULET_ASSIGN_OR_RETURN(
      JsonReader fields,
      JsonReader::Of(kTokenizerRules, root, "",
                     {"version", "truncation", "padding", "added_tokens", "normalizer",
                      "pre_tokenizer", "post_processor", "decoder", "model"}));
  RIVULET_RETURN_IF_ERROR(fields.Choice<int>("version", {{"1.0", 0}}, nullptr));
  for (const char* const key : {"truncation", "padding"}) {
    if (fields.Find(key) != nullptr && ignored != nullptr) ignored->push_back(key);
  }
  const JsonValue* model_value = fields.Find("model");
  if (model_value == nullptr) return fields.Invalid("model", "is missing");
  RIVULET_ASSIGN_OR_RETURN(BpeModel model, BpeModel::Create(*model_value, "model"));
  RIVULET_ASSIGN_OR_RETURN(Normalizer normalizer,
                           Normalizer::Create(fields.Find("normalizer"), "normalizer"));
  RIVULET_ASSIGN_OR_RETURN(AddedTokens added, AddedTokens::Create(&fields, model, normalizer));
  RIVULET_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer,
                           PreTokenizer::Create(fields.Find("pre_tokenizer"), "pre_tokenizer"));
  RIVULET_ASSIGN_OR_RETURN(PostProcessor post_processor,
                           PostProcessor::Create(fields.Find("post_processor"), "post_processor"));
  RIVULET_ASSIGN_OR_RETURN(TokenDecoder decoder,
                           TokenDecoder::Create(fields.Find("decoder"), "decoder"));
  RIVULET_ASSIGN_OR_RETURN(std::vector<std::string> bytes, DecodeVocabulary(model, decoder));
  return std::make_unique<JsonTokenizer>(
      Parts{std::move(model), std::move(normalizer), std::move(added), std::move(pre_tokenizer),
            std::move(post_processor), std::move(decoder)},
      std::move(bytes));
}

}  // namespace rivulet
