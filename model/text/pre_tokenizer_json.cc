// SPDX-License-Identifier: Apache-2.0
// `pre_tokenizer` of tokenizer.json, read into steps.
#include <utility>

#include "model/base/error.h"
#include "model/base/utf8.h"
#include "model/text/pre_tokenizer.h"
#include "model/text/tokenizer_rules.h"

namespace rivulet {
namespace {

// ByteLevel's pattern with `use_regex`: contractions, words, numbers, the rest, with the space
// before, and white space. Source: the GPT-2 tokenizer.
constexpr absl::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

absl::Status PreTokenizer::AddByteLevel(const JsonValue& value, absl::string_view path,
                                        std::vector<Step>* steps) {
  RIVULET_ASSIGN_OR_RETURN(
      JsonReader fields, JsonReader::Of(kTokenizerRules, value, path,
                                        {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  bool prefix = false, split = false, trims = false;
  RIVULET_RETURN_IF_ERROR(fields.Bool("add_prefix_space", &prefix, true));
  RIVULET_RETURN_IF_ERROR(fields.Bool("use_regex", &split, true));
  // Offsets are trimmed by the post-processor; here the setting has no effect.
  RIVULET_RETURN_IF_ERROR(fields.Bool("trim_offsets", &trims, true));
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
  RIVULET_ASSIGN_OR_RETURN(
      JsonReader fields,
      JsonReader::Of(kTokenizerRules, value, path, {"type", "pattern", "behavior", "invert"}));
  Step step;
  RIVULET_RETURN_IF_ERROR(
      fields.Choice<SplitBehavior>("behavior",
                                   {{"Removed", SplitBehavior::kRemoved},
                                    {"Isolated", SplitBehavior::kIsolated},
                                    {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
                                    {"MergedWithNext", SplitBehavior::kMergedWithNext},
                                    {"Contiguous", SplitBehavior::kContiguous}},
                                   &step.behavior));
  RIVULET_RETURN_IF_ERROR(fields.Bool("invert", &step.inverted, false));
  RIVULET_ASSIGN_OR_RETURN(JsonReader kind, fields.Object("pattern", {"String", "Regex"}));
  if (kind.Find("Regex") != nullptr && kind.Find("String") != nullptr) {
    return fields.Invalid("pattern", "has both String and Regex");
  }
  std::string text;
  if (kind.Find("Regex") != nullptr) {
    RIVULET_RETURN_IF_ERROR(kind.Text("Regex", &text));
    RIVULET_ASSIGN_OR_RETURN(step.pattern, Pattern::Compile(text, kind.PathOf("Regex")));
  } else {
    RIVULET_RETURN_IF_ERROR(kind.Text("String", &text));
    if (text.empty()) return kind.Invalid("String", "is empty");
    step.pattern = Pattern::Literal(text);
  }
  steps->push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddDigits(const JsonValue& value, absl::string_view path,
                                     std::vector<Step>* steps) {
  RIVULET_ASSIGN_OR_RETURN(JsonReader fields, JsonReader::Of(kTokenizerRules, value, path,
                                                             {"type", "individual_digits"}));
  bool individual = false;
  RIVULET_RETURN_IF_ERROR(fields.Bool("individual_digits", &individual, false));
  Step step;
  step.behavior = individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
  RIVULET_ASSIGN_OR_RETURN(step.pattern, Pattern::Compile(R"(\p{N})", path));
  steps->push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddMetaspace(const JsonValue& value, absl::string_view path,
                                        std::vector<Step>* steps) {
  RIVULET_ASSIGN_OR_RETURN(JsonReader fields,
                           JsonReader::Of(kTokenizerRules, value, path,
                                          {"type", "replacement", "prepend_scheme", "split"}));
  Step step;
  step.kind = Step::Kind::kMetaspace;
  RIVULET_RETURN_IF_ERROR(fields.Text("replacement", &step.replacement));
  uint32_t code_point = 0;
  if (step.replacement.empty() ||
      DecodeUtf8(step.replacement, &code_point) != step.replacement.size()) {
    return fields.Invalid("replacement", "is ", Quoted(step.replacement), ", not one character");
  }
  RIVULET_RETURN_IF_ERROR(fields.Choice<Prepend>(
      "prepend_scheme",
      {{"always", Prepend::kAlways}, {"first", Prepend::kFirst}, {"never", Prepend::kNever}},
      &step.prepend, Prepend::kAlways));
  bool split = false;
  RIVULET_RETURN_IF_ERROR(fields.Bool("split", &split, true));
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
  RIVULET_ASSIGN_OR_RETURN(JsonReader fields,
                           JsonReader::Of(kTokenizerRules, value, path, {"type", "pretokenizers"}));
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
    return kTokenizerRules.Unsupported(path, "has ", made.steps_.size(),
                                       " steps; supported: at most ", kMaxSteps);
  }
  return made;
}

}  // namespace rivulet
