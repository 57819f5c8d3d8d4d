// SPDX-License-Identifier: Apache-2.0
#include "model/text/token_decoder.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "model/base/error.h"
#include "model/text/byte_alphabet.h"
#include "model/text/tokenizer_rules.h"

namespace rivulet {
namespace {

// The byte of <0xHH>, or -1.
int ByteOf(absl::string_view token) {
  if (token.size() != 6 || !absl::StartsWith(token, "<0x") || token[5] != '>') return -1;
  const std::string digits(token.substr(3, 2));
  const auto is_digit = [](char c) { return absl::ascii_isxdigit(static_cast<uint8_t>(c)); };
  if (!is_digit(digits[0]) || !is_digit(digits[1])) return -1;
  return std::stoi(digits, nullptr, 16);
}

// The size of `text` with every `pattern`, which is not empty, replaced by `content`.
size_t SizeReplaced(absl::string_view text, absl::string_view pattern, absl::string_view content) {
  size_t size = text.size();
  for (size_t at = 0; (at = text.find(pattern, at)) != absl::string_view::npos;) {
    at += pattern.size();
    size = size - pattern.size() + content.size();
  }
  return size;
}

}  // namespace

absl::Status TokenDecoder::AddReplace(const JsonValue& value, absl::string_view path) {
  RIVULET_ASSIGN_OR_RETURN(JsonReader fields, JsonReader::Of(kTokenizerRules, value, path,
                                                             {"type", "pattern", "content"}));
  Step step;
  step.kind = Step::Kind::kReplace;
  RIVULET_ASSIGN_OR_RETURN(JsonReader kind, fields.Object("pattern", {"String"}));
  RIVULET_RETURN_IF_ERROR(kind.Text("String", &step.pattern));
  RIVULET_RETURN_IF_ERROR(fields.Text("content", &step.content));
  if (step.pattern.empty()) return kind.Invalid("String", "is empty");
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status TokenDecoder::AddMetaspace(const JsonValue& value, absl::string_view path) {
  RIVULET_ASSIGN_OR_RETURN(JsonReader fields,
                           JsonReader::Of(kTokenizerRules, value, path,
                                          {"type", "replacement", "prepend_scheme", "split"}));
  Step step;
  step.kind = Step::Kind::kReplace;
  RIVULET_RETURN_IF_ERROR(fields.Text("replacement", &step.pattern));
  if (step.pattern.empty()) return fields.Invalid("replacement", "is empty");
  step.content.push_back(' ');
  RIVULET_RETURN_IF_ERROR(fields.Choice<bool>("prepend_scheme",
                                              {{"always", true}, {"first", true}, {"never", false}},
                                              &strips_leading_space_, true));
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status TokenDecoder::AddStrip(const JsonValue& value, absl::string_view path, bool fused) {
  RIVULET_ASSIGN_OR_RETURN(JsonReader fields, JsonReader::Of(kTokenizerRules, value, path,
                                                             {"type", "content", "start", "stop"}));
  std::string content;
  RIVULET_RETURN_IF_ERROR(fields.Text("content", &content));
  int start = 0, stop = 0;
  RIVULET_RETURN_IF_ERROR(fields.Int("start", 0, 1, &start));
  RIVULET_RETURN_IF_ERROR(fields.Int("stop", 0, 0, &stop));
  if (content != " " || !fused) {
    return kTokenizerRules.Unsupported(path, "strips ", Quoted(content), " of each ",
                                       fused ? "text" : "token",
                                       "; supported: a space, behind Fuse");
  }
  strips_leading_space_ = start == 1;
  return absl::OkStatus();
}

absl::Status TokenDecoder::AddList(const JsonValue& value, absl::string_view path, bool* fused) {
  RIVULET_ASSIGN_OR_RETURN(JsonReader fields,
                           JsonReader::Of(kTokenizerRules, value, path, {"type", "decoders"}));
  return fields.ForEach("decoders", [this, fused](const JsonValue& item, absl::string_view at) {
    return Add(item, at, fused);
  });
}

absl::Status TokenDecoder::Add(const JsonValue& value, absl::string_view path, bool* fused) {
  const absl::string_view name = TypeOf(value);
  const bool per_token =
      name == "Replace" || name == "ByteFallback" || name == "ByteLevel" || name == "Metaspace";
  if (*fused && per_token) {
    return kTokenizerRules.Unsupported(absl::StrCat(path, ".type"), "is ", Quoted(name),
                                       " behind Fuse");
  }
  if (name == "Sequence") return AddList(value, path, fused);
  if (name == "Replace") return AddReplace(value, path);
  if (name == "Metaspace") return AddMetaspace(value, path);
  if (name == "Strip") return AddStrip(value, path, *fused);
  if (name == "ByteLevel") {
    RIVULET_RETURN_IF_ERROR(
        JsonReader::Of(kTokenizerRules, value, path,
                       {"type", "add_prefix_space", "trim_offsets", "use_regex"})
            .status());
    steps_.push_back({Step::Kind::kByteLevel, "", ""});
    return absl::OkStatus();
  }
  if (name == "ByteFallback" || name == "Fuse") {
    RIVULET_RETURN_IF_ERROR(JsonReader::Of(kTokenizerRules, value, path, {"type"}).status());
    if (name == "Fuse") *fused = true;
    if (name == "ByteFallback") steps_.push_back({Step::Kind::kByteFallback, "", ""});
    return absl::OkStatus();
  }
  return UnsupportedType(value, path,
                         "ByteLevel, Metaspace, Sequence, Replace, ByteFallback, Fuse, Strip");
}

absl::StatusOr<TokenDecoder> TokenDecoder::Create(const JsonValue* value, absl::string_view path) {
  TokenDecoder decoder;
  if (value == nullptr) return kTokenizerRules.Invalid(path, "is missing");
  bool fused = false;
  RIVULET_RETURN_IF_ERROR(decoder.Add(*value, path, &fused));
  return decoder;
}

absl::StatusOr<std::string> TokenDecoder::BytesOf(absl::string_view token,
                                                  TextBudget* budget) const {
  std::string bytes(token);
  BudgetedBytes taken(budget);
  if (!taken.Add(bytes.size())) return budget->status();
  for (const Step& step : steps_) {
    if (!budget->Step(1 + bytes.size())) return budget->status();
    if (step.kind == Step::Kind::kReplace) {
      if (!taken.Add(SizeReplaced(bytes, step.pattern, step.content))) return budget->status();
      bytes = absl::StrReplaceAll(bytes, {{step.pattern, step.content}});
    } else if (step.kind == Step::Kind::kByteFallback) {
      const int byte = ByteOf(bytes);
      if (byte >= 0) return std::string(1, static_cast<char>(byte));
    } else {
      std::string made;
      if (BytesOfAlphabet(bytes, &made)) bytes.swap(made);
    }
  }
  return bytes;
}

}  // namespace rivulet
