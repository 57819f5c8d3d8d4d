// SPDX-License-Identifier: Apache-2.0
// `pre_tokenizer` of tokenizer.json, read into steps.
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/utf8.h"
#include "model/text/json_fields.h"
#include "model/text/pre_tokenizer.h"

namespace rivulet {
namespace {

// What ByteLevel splits by where `use_regex` is set: contractions, words, numbers, the rest, with
// the space before, and white space. Source: the GPT-2 tokenizer.
constexpr absl::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

absl::StatusOr<SplitBehavior> BehaviorOf(const JsonFields& fields) {
  RIVULET_ASSIGN_OR_RETURN(const std::string name, fields.Text("behavior"));
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return UnsupportedTokenizer(fields.PathOf("behavior"),
                              absl::StrCat("is ", Quoted(name),
                                           "; supported: Removed, Isolated, MergedWithPrevious, "
                                           "MergedWithNext, Contiguous"));
}

}  // namespace

absl::Status PreTokenizer::AddByteLevel(const JsonValue& value, absl::string_view path,
                                        std::vector<Step>* steps) {
  RIVULET_ASSIGN_OR_RETURN(
      const JsonFields fields,
      JsonFields::Of(value, path, {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  RIVULET_ASSIGN_OR_RETURN(const bool prefix, fields.Bool("add_prefix_space", true));
  RIVULET_ASSIGN_OR_RETURN(const bool split, fields.Bool("use_regex", true));
  // Offsets are trimmed by the post-processor; here the setting has no effect.
  RIVULET_RETURN_IF_ERROR(fields.Bool("trim_offsets", true).status());
  if (prefix) {
    steps->emplace_back();
    steps->back().kind = Step::Kind::kPrefixSpace;
  }
  if (split) {
    steps->emplace_back();
    RIVULET_ASSIGN_OR_RETURN(steps->back().pattern, Pattern::Compile(kByteLevelPattern, path));
  }
  steps->emplace_back();
  steps->back().kind = Step::Kind::kByteMap;
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddSplit(const JsonValue& value, absl::string_view path,
                                    std::vector<Step>* steps) {
  RIVULET_ASSIGN_OR_RETURN(const JsonFields fields,
                           JsonFields::Of(value, path, {"type", "pattern", "behavior", "invert"}));
  Step step;
  RIVULET_ASSIGN_OR_RETURN(step.behavior, BehaviorOf(fields));
  RIVULET_ASSIGN_OR_RETURN(step.inverted, fields.Bool("invert", false));
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* pattern, fields.Required("pattern"));
  RIVULET_ASSIGN_OR_RETURN(const JsonFields kind,
                           JsonFields::Of(*pattern, fields.PathOf("pattern"), {"String", "Regex"}));
  if (kind.Find("Regex") != nullptr && kind.Find("String") != nullptr) {
    return InvalidTokenizer(fields.PathOf("pattern"), "has both String and Regex");
  }
  if (kind.Find("Regex") != nullptr) {
    RIVULET_ASSIGN_OR_RETURN(const std::string text, kind.Text("Regex"));
    RIVULET_ASSIGN_OR_RETURN(step.pattern, Pattern::Compile(text, kind.PathOf("Regex")));
  } else {
    RIVULET_ASSIGN_OR_RETURN(const std::string text, kind.Text("String"));
    if (text.empty()) return InvalidTokenizer(kind.PathOf("String"), "is empty");
    step.pattern = Pattern::Literal(text);
  }
  steps->push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddDigits(const JsonValue& value, absl::string_view path,
                                     std::vector<Step>* steps) {
  RIVULET_ASSIGN_OR_RETURN(const JsonFields fields,
                           JsonFields::Of(value, path, {"type", "individual_digits"}));
  RIVULET_ASSIGN_OR_RETURN(const bool individual, fields.Bool("individual_digits", false));
  Step step;
  step.behavior = individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
  RIVULET_ASSIGN_OR_RETURN(step.pattern, Pattern::Compile(R"(\p{N})", path));
  steps->push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddMetaspace(const JsonValue& value, absl::string_view path,
                                        std::vector<Step>* steps) {
  RIVULET_ASSIGN_OR_RETURN(
      const JsonFields fields,
      JsonFields::Of(value, path, {"type", "replacement", "prepend_scheme", "split"}));
  Step step;
  step.kind = Step::Kind::kMetaspace;
  RIVULET_ASSIGN_OR_RETURN(step.replacement, fields.Text("replacement"));
  uint32_t code_point = 0;
  if (step.replacement.empty() ||
      DecodeUtf8(step.replacement, &code_point) != step.replacement.size()) {
    return InvalidTokenizer(fields.PathOf("replacement"),
                            absl::StrCat("is ", Quoted(step.replacement), ", not one character"));
  }
  if (fields.Find("prepend_scheme") != nullptr) {
    RIVULET_ASSIGN_OR_RETURN(const std::string scheme, fields.Text("prepend_scheme"));
    if (scheme == "never") {
      step.prepend = Prepend::kNever;
    } else if (scheme == "first") {
      step.prepend = Prepend::kFirst;
    } else if (scheme != "always") {
      return UnsupportedTokenizer(
          fields.PathOf("prepend_scheme"),
          absl::StrCat("is ", Quoted(scheme), "; supported: always, first, never"));
    }
  }
  RIVULET_ASSIGN_OR_RETURN(const bool split, fields.Bool("split", true));
  Step by_replacement;
  by_replacement.behavior = SplitBehavior::kMergedWithNext;
  by_replacement.pattern = Pattern::Literal(step.replacement);
  steps->push_back(std::move(step));
  if (split) steps->push_back(std::move(by_replacement));
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddSteps(const JsonValue& value, absl::string_view path,
                                    std::vector<Step>* steps) {
  const absl::string_view name = TypeOf(value);
  if (name == "ByteLevel") return AddByteLevel(value, path, steps);
  if (name == "Split") return AddSplit(value, path, steps);
  if (name == "Digits") return AddDigits(value, path, steps);
  if (name == "Metaspace") return AddMetaspace(value, path, steps);
  if (name != "Sequence") {
    return UnsupportedType(value, path, "ByteLevel, Split, Digits, Metaspace, Sequence");
  }
  RIVULET_ASSIGN_OR_RETURN(const JsonFields fields,
                           JsonFields::Of(value, path, {"type", "pretokenizers"}));
  return fields.ForEach("pretokenizers", [steps](const JsonValue& item, absl::string_view at) {
    return AddSteps(item, at, steps);
  });
}

absl::StatusOr<PreTokenizer> PreTokenizer::Create(const JsonValue* value, absl::string_view path) {
  constexpr size_t kMaxSteps = 64;
  PreTokenizer made;
  if (value == nullptr) return made;
  RIVULET_RETURN_IF_ERROR(AddSteps(*value, path, &made.steps_));
  if (made.steps_.size() > kMaxSteps) {
    return UnsupportedTokenizer(
        path, absl::StrCat("has ", made.steps_.size(), " steps; supported: at most ", kMaxSteps));
  }
  return made;
}

}  // namespace rivulet
