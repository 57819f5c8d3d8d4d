// SPDX-License-Identifier: Apache-2.0
#include "model/text/post_processor.h"

#include <algorithm>
#include <utility>

#include "model/base/error.h"
#include "model/base/utf8.h"
#include "model/text/bpe.h"
#include "model/text/tokenizer_rules.h"

namespace rivulet {
namespace {

// Ids of the special token `name` of a template.
absl::StatusOr<std::vector<int32_t>> IdsOf(JsonReader* fields, const std::string& name) {
  RIVULET_ASSIGN_OR_RETURN(JsonReader all, fields->Object("special_tokens"));
  if (all.Find(name) == nullptr) return fields->Invalid("special_tokens", "lacks ", Quoted(name));
  RIVULET_ASSIGN_OR_RETURN(JsonReader entry, all.Object(name, {"id", "ids", "tokens"}));
  std::vector<int32_t> ids;
  RIVULET_RETURN_IF_ERROR(entry.ForEach("ids", [&](const JsonValue& id, absl::string_view) {
    if (id.kind != JsonValue::Kind::kInteger || id.integer < 0 || id.integer >= kMaxVocabularyIds) {
      return entry.Invalid("ids", "has ", Describe(id), "; allowed: 0 to ", kMaxVocabularyIds - 1);
    }
    ids.push_back(static_cast<int32_t>(id.integer));
    return absl::OkStatus();
  }));
  if (ids.empty()) return entry.Invalid("ids", "has no ids");
  return ids;
}

// Code points of white space, or of the space of the byte alphabet, at the ends of a token.
struct Spaces {
  int leading = 0;
  int trailing = 0;
};

Spaces SpacesOf(absl::string_view token) {
  constexpr uint32_t kByteAlphabetSpace = 0x120;
  Spaces spaces;
  for (bool only = true; !token.empty();) {
    uint32_t code_point = 0;
    token.remove_prefix(DecodeUtf8(token, &code_point));
    const bool is_space = code_point == kByteAlphabetSpace || IsWhiteSpace(code_point);
    only = only && is_space;
    spaces.leading += only;
    spaces.trailing = is_space ? spaces.trailing + 1 : 0;
  }
  return spaces;
}

// The span without the code points at its ends that `spaces` counts.
SourceSpan Trimmed(absl::string_view text, SourceSpan span, Spaces spaces) {
  for (int leading = spaces.leading; leading > 0 && span.begin < span.end; --leading) {
    do ++span.begin;
    while (span.begin < span.end && IsUtf8Tail(text[span.begin]));
  }
  for (int trailing = spaces.trailing; trailing > 0 && span.end > span.begin; --trailing) {
    do --span.end;
    while (span.end > span.begin && IsUtf8Tail(text[span.end]));
  }
  return span;
}

}  // namespace

absl::Status PostProcessor::AddTemplate(const JsonValue& value, absl::string_view path) {
  RIVULET_ASSIGN_OR_RETURN(
      JsonReader fields,
      JsonReader::Of(kTokenizerRules, value, path, {"type", "single", "pair", "special_tokens"}));
  Step step;
  int texts = 0;
  const auto add = [&](const JsonValue& item, absl::string_view at) -> absl::Status {
    RIVULET_ASSIGN_OR_RETURN(
        JsonReader piece, JsonReader::Of(kTokenizerRules, item, at, {"SpecialToken", "Sequence"}));
    if (piece.Find("SpecialToken") == nullptr) {
      ++texts;
      return piece.Find("Sequence") != nullptr ? absl::OkStatus()
                                               : piece.Invalid("Sequence", "is missing");
    }
    RIVULET_ASSIGN_OR_RETURN(JsonReader entry, piece.Object("SpecialToken", {"id", "type_id"}));
    std::string name;
    RIVULET_RETURN_IF_ERROR(entry.Text("id", &name));
    RIVULET_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, IdsOf(&fields, name));
    std::vector<int32_t>& side = texts == 0 ? step.before : step.behind;
    side.insert(side.end(), ids.begin(), ids.end());
    return absl::OkStatus();
  };
  RIVULET_RETURN_IF_ERROR(fields.ForEach("single", add));
  if (texts != 1) {
    return fields.Invalid("single", "has the text ", texts, " times; allowed: once");
  }
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status PostProcessor::Add(const JsonValue& value, absl::string_view path) {
  const absl::string_view name = TypeOf(value);
  if (name == "TemplateProcessing") return AddTemplate(value, path);
  if (name == "ByteLevel") {
    RIVULET_ASSIGN_OR_RETURN(JsonReader fields, JsonReader::Of(kTokenizerRules, value, path,
                                                               {"type", "add_prefix_space",
                                                                "trim_offsets", "use_regex"}));
    Step step;
    RIVULET_RETURN_IF_ERROR(fields.Bool("trim_offsets", &step.trims, true));
    RIVULET_RETURN_IF_ERROR(fields.Bool("add_prefix_space", &step.add_prefix_space, true));
    if (step.trims) steps_.push_back(std::move(step));
    return absl::OkStatus();
  }
  if (name != "Sequence") {
    return UnsupportedType(value, path, "TemplateProcessing, ByteLevel, Sequence");
  }
  RIVULET_ASSIGN_OR_RETURN(JsonReader fields,
                           JsonReader::Of(kTokenizerRules, value, path, {"type", "processors"}));
  return fields.ForEach(
      "processors", [this](const JsonValue& item, absl::string_view at) { return Add(item, at); });
}

absl::StatusOr<PostProcessor> PostProcessor::Create(const JsonValue* value,
                                                    absl::string_view path) {
  PostProcessor made;
  if (value != nullptr) RIVULET_RETURN_IF_ERROR(made.Add(*value, path));
  return made;
}

int32_t PostProcessor::largest_id() const {
  int32_t largest = -1;
  for (const Step& step : steps_) {
    for (const int32_t id : step.before) largest = std::max(largest, id);
    for (const int32_t id : step.behind) largest = std::max(largest, id);
  }
  return largest;
}

absl::Status PostProcessor::Apply(absl::string_view text, bool add_tokens,
                                  const TokenText& token_text, TextBudget* budget,
                                  TextTokens* tokens) const {
  for (const Step& step : steps_) {
    if (!step.trims) {
      if (!add_tokens) continue;
      const size_t added = step.before.size() + step.behind.size();
      if (!budget->Step(tokens->ids.size()) || !budget->Take(added * kBytesPerToken)) {
        return budget->status();
      }
      tokens->ids.insert(tokens->ids.begin(), step.before.begin(), step.before.end());
      tokens->ids.insert(tokens->ids.end(), step.behind.begin(), step.behind.end());
      tokens->spans.insert(tokens->spans.begin(), step.before.size(), SourceSpan());
      tokens->spans.insert(tokens->spans.end(), step.behind.size(), SourceSpan());
      tokens->added_before += step.before.size();
      tokens->added_behind += step.behind.size();
      continue;
    }
    for (size_t i = 0; i < tokens->ids.size(); ++i) {
      const absl::string_view token = token_text(tokens->ids[i], tokens->spans[i]);
      if (!budget->Step(1 + token.size())) return budget->status();
      Spaces spaces = SpacesOf(token);
      SourceSpan& span = tokens->spans[i];
      // The single space of a first word may come from the pre-tokenizer.
      const bool is_first = i == 0 || span.begin == 0;
      if (spaces.leading == 1 && step.add_prefix_space && is_first) spaces.leading = 0;
      span = Trimmed(text, span, spaces);
    }
  }
  return absl::OkStatus();
}

}  // namespace rivulet
