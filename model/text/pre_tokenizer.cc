// SPDX-License-Identifier: Apache-2.0
#include "model/text/pre_tokenizer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "absl/strings/match.h"
#include "model/base/error.h"
#include "model/text/byte_alphabet.h"

namespace rivulet {

// Joins the results of Split: matches and the text between them, in order.
class PreTokenizer::Joiner {
 public:
  using Action = absl::FunctionRef<absl::Status(TextRange piece)>;
  Joiner(SplitBehavior behavior, Action action) : behavior_(behavior), action_(action) {}

  absl::Status Add(TextRange range, bool is_match) {
    if (behavior_ == SplitBehavior::kRemoved && is_match) return absl::OkStatus();
    const bool joins = has_piece_ && Joins(is_match);
    before_is_match_ = is_match;
    if (joins) {
      piece_.end = range.end;
      return absl::OkStatus();
    }
    RIVULET_RETURN_IF_ERROR(Finish());
    piece_ = range;
    has_piece_ = true;
    return absl::OkStatus();
  }

  absl::Status Finish() {
    if (!has_piece_ || piece_.begin == piece_.end) return absl::OkStatus();
    has_piece_ = false;
    return action_(piece_);
  }

 private:
  bool Joins(bool is_match) const {
    switch (behavior_) {
      case SplitBehavior::kMergedWithPrevious:
        return is_match && !before_is_match_;
      case SplitBehavior::kMergedWithNext:
        return !is_match && before_is_match_;
      case SplitBehavior::kContiguous:
        return is_match == before_is_match_;
      case SplitBehavior::kRemoved:
      case SplitBehavior::kIsolated:
        break;
    }
    return false;
  }

  const SplitBehavior behavior_;
  const Action action_;
  TextRange piece_;
  bool has_piece_ = false;
  bool before_is_match_ = false;
};

// Takes each piece through all steps before the next, so that only one is in memory.
class PreTokenizer::Cutter {
 public:
  Cutter(const std::vector<Step>& steps, TextBudget* budget, PieceAction action)
      : steps_(steps), budget_(budget), bytes_(budget), action_(action), made_(steps.size()) {}

  // Applies the steps from `at` on.
  absl::Status Run(size_t at, const AlignedText& text, TextRange piece) {
    if (at == steps_.size()) return action_(text, piece);
    if (steps_[at].kind == Step::Kind::kSplit) return Split(at, text, piece);
    AlignedText& made = made_[at].text;
    made.BeginAs(text);
    RIVULET_RETURN_IF_ERROR(Rewrite(at, text, piece));
    return Run(at + 1, made, {0, made.size()});
  }

 private:
  struct Made {
    AlignedText text;
    size_t reserved = 0;  // bytes of text
  };

  absl::Status Split(size_t at, const AlignedText& text, TextRange piece) {
    const Step& step = steps_[at];
    const auto next = [&](TextRange range) { return Run(at + 1, text, range); };
    Joiner joiner(step.behavior, next);
    size_t done = piece.begin;
    const auto add = [&](TextRange match) -> absl::Status {
      const TextRange found = {piece.begin + match.begin, piece.begin + match.end};
      if (found.begin != done) {
        RIVULET_RETURN_IF_ERROR(joiner.Add({done, found.begin}, step.inverted));
      }
      done = found.end;
      return joiner.Add(found, !step.inverted);
    };
    RIVULET_RETURN_IF_ERROR(step.pattern.ForEachMatch(text.text(piece), budget_, add));
    if (done != piece.end) RIVULET_RETURN_IF_ERROR(joiner.Add({done, piece.end}, step.inverted));
    return joiner.Finish();
  }

  // Takes memory for the text that a step makes.
  absl::Status Reserve(size_t at, size_t size) {
    Made& made = made_[at];
    if (!budget_->Step(size)) return budget_->status();
    if (size <= made.reserved) return absl::OkStatus();
    if (!bytes_.Add(AlignedText::BytesOf(size - made.reserved))) return budget_->status();
    made.text.Reserve(size);
    made.reserved = size;
    return absl::OkStatus();
  }

  absl::Status Rewrite(size_t at, const AlignedText& text, TextRange piece) {
    switch (steps_[at].kind) {
      case Step::Kind::kByteMap:
        return MapBytes(at, text, piece);
      case Step::Kind::kPrefixSpace:
        return PrefixSpace(at, text, piece);
      case Step::Kind::kMetaspace:
      case Step::Kind::kSplit:
        break;
    }
    return ReplaceSpaces(at, text, piece);
  }

  absl::Status MapBytes(size_t at, const AlignedText& text, TextRange piece) {
    const std::array<std::string, 256>& alphabet = ByteAlphabet();
    size_t size = 0;
    for (const char byte : text.text(piece)) size += alphabet[static_cast<uint8_t>(byte)].size();
    RIVULET_RETURN_IF_ERROR(Reserve(at, size));
    const absl::string_view source = text.text();
    const auto is_own = [&alphabet, source](size_t i) {
      return alphabet[static_cast<uint8_t>(source[i])].size() == 1;
    };
    for (size_t i = piece.begin; i < piece.end;) {
      size_t end = i;
      while (end < piece.end && is_own(end)) ++end;
      made_[at].text.Append(text, {i, end});
      if (end < piece.end) {
        made_[at].text.Append(alphabet[static_cast<uint8_t>(source[end])], text.span(end));
        ++end;
      }
      i = end;
    }
    return absl::OkStatus();
  }

  absl::Status PrefixSpace(size_t at, const AlignedText& text, TextRange piece) {
    RIVULET_RETURN_IF_ERROR(Reserve(at, 1 + piece.end - piece.begin));
    AlignedText& made = made_[at].text;
    if (!absl::StartsWith(text.text(piece), " ")) made.Append(" ", text.span(piece.begin));
    made.Append(text, piece);
    return absl::OkStatus();
  }

  absl::Status ReplaceSpaces(size_t at, const AlignedText& text, TextRange piece) {
    const Step& step = steps_[at];
    const absl::string_view source = text.text(piece);
    const auto spaces = static_cast<size_t>(std::count(source.begin(), source.end(), ' '));
    RIVULET_RETURN_IF_ERROR(Reserve(at, source.size() + (spaces + 1) * step.replacement.size()));
    AlignedText& made = made_[at].text;
    const bool wanted = step.prepend == Prepend::kAlways ||
                        (step.prepend == Prepend::kFirst && text.span(piece.begin).begin == 0);
    const bool has = absl::StartsWith(source, " ") || absl::StartsWith(source, step.replacement);
    if (wanted && !has) made.Append(step.replacement, text.span(piece.begin));
    for (size_t done = piece.begin; done < piece.end;) {
      const size_t space = std::min(text.text().find(' ', done), piece.end);
      made.Append(text, {done, space});
      if (space < piece.end) made.Append(step.replacement, text.span(space));
      done = space + 1;
    }
    return absl::OkStatus();
  }

  const std::vector<Step>& steps_;
  TextBudget* const budget_;
  BudgetedBytes bytes_;
  const PieceAction action_;
  std::vector<Made> made_;  // of each step
};

absl::Status PreTokenizer::Cut(const AlignedText& text, TextRange range, TextBudget* budget,
                               PieceAction action) const {
  if (range.begin == range.end) return absl::OkStatus();
  return Cutter(steps_, budget, action).Run(0, text, range);
}

}  // namespace rivulet
