// SPDX-License-Identifier: Apache-2.0
#include "model/text/normalizer.h"

#include <utility>

#include "model/base/error.h"
#include "model/text/tokenizer_rules.h"

namespace rivulet {

absl::Status Normalizer::AddSteps(const JsonValue& value, absl::string_view path,
                                  std::vector<Step>* steps) {
  RIVULET_ASSIGN_OR_RETURN(
      JsonReader fields, JsonReader::Of(kTokenizerRules, value, path,
                                        {"type", "normalizers", "prepend", "pattern", "content"}));
  const absl::string_view type = TypeOf(value);
  Step step;
  if (type == "Sequence") {
    return fields.ForEach("normalizers", [steps](const JsonValue& item, absl::string_view at) {
      return AddSteps(item, at, steps);
    });
  }
  if (type == "Prepend") {
    step.kind = Step::Kind::kPrepend;
    RIVULET_RETURN_IF_ERROR(fields.Text("prepend", &step.content));
  } else if (type == "Replace") {
    step.kind = Step::Kind::kReplace;
    RIVULET_ASSIGN_OR_RETURN(JsonReader kind, fields.Object("pattern", {"String"}));
    RIVULET_RETURN_IF_ERROR(kind.Text("String", &step.pattern));
    RIVULET_RETURN_IF_ERROR(fields.Text("content", &step.content));
    if (step.pattern.empty()) return kind.Invalid("String", "is empty");
  } else if (type != "NFC") {
    return UnsupportedType(value, path, "NFC, Prepend, Replace, Sequence");
  }
  steps->push_back(std::move(step));
  return absl::OkStatus();
}

absl::StatusOr<Normalizer> Normalizer::Create(const JsonValue* value, absl::string_view path) {
  Normalizer normalizer;
  if (value != nullptr) RIVULET_RETURN_IF_ERROR(AddSteps(*value, path, &normalizer.steps_));
  return normalizer;
}

absl::StatusOr<AlignedText> Normalizer::Apply(AlignedText text, TextBudget* budget) const {
  for (const Step& step : steps_) {
    absl::StatusOr<AlignedText> made;
    switch (step.kind) {
      case Step::Kind::kNfc:
        made = ComposeCanonically(std::move(text), budget);
        break;
      case Step::Kind::kPrepend:
        made = PrependText(step.content, std::move(text), budget);
        break;
      case Step::Kind::kReplace:
        made = ReplaceText(step.pattern, step.content, std::move(text), budget);
        break;
    }
    if (!made.ok()) return made.status();
    text = *std::move(made);
  }
  return text;
}

absl::StatusOr<AlignedText> PrependText(absl::string_view content, AlignedText text,
                                        TextBudget* budget) {
  if (text.empty()) return text;
  const size_t size = content.size() + text.size();
  if (!budget->Step(size) || !budget->Take(AlignedText::BytesOf(size))) return budget->status();
  AlignedText out;
  out.BeginAs(text);
  out.Reserve(size);
  out.Append(content, text.span(0));
  out.Append(text, {0, text.size()});
  budget->Give(text.budgeted());
  return out;
}

absl::StatusOr<AlignedText> ReplaceText(absl::string_view pattern, absl::string_view content,
                                        AlignedText text, TextBudget* budget) {
  size_t found = 0;
  for (size_t at = 0; (at = text.text().find(pattern, at)) != absl::string_view::npos; ++found) {
    at += pattern.size();
  }
  const size_t size = text.size() - found * pattern.size() + found * content.size();
  if (!budget->Step(text.size())) return budget->status();
  if (found == 0) return text;
  if (!budget->Take(AlignedText::BytesOf(size)) || !budget->Step(size)) return budget->status();
  AlignedText out;
  out.BeginAs(text);
  out.Reserve(size);
  size_t done = 0;
  for (size_t at = 0; (at = text.text().find(pattern, at)) != absl::string_view::npos;) {
    out.Append(text, {done, at});
    at += pattern.size();
    out.Append(content, text.span(at - 1));
    done = at;
  }
  out.Append(text, {done, text.size()});
  budget->Give(text.budgeted());
  return out;
}

}  // namespace rivulet
