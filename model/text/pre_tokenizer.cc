// SPDX-License-Identifier: Apache-2.0
#include "model/text/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "model/base/error.h"
#include "model/text/byte_alphabet.h"
#include "model/text/normalizer.h"

namespace rivulet {
namespace {

struct Segment {
  TextRange range;
  bool is_match = false;
};

// A piece that was cut: what matches and what lies between, in order.
std::vector<Segment> Segments(TextRange piece, const std::vector<TextRange>& matches,
                              bool inverted) {
  std::vector<Segment> segments;
  size_t done = 0;
  const size_t size = piece.end - piece.begin;
  const auto add = [&](size_t begin, size_t end, bool is_match) {
    segments.push_back({{piece.begin + begin, piece.begin + end}, is_match != inverted});
  };
  for (const TextRange match : matches) {
    if (match.begin != done) add(done, match.begin, false);
    add(match.begin, match.end, true);
    done = match.end;
  }
  if (done != size) add(done, size, false);
  return segments;
}

// Pieces where each match joins its neighbour, or, kContiguous, all that are alike join.
std::vector<TextRange> Joined(std::vector<Segment> segments, SplitBehavior behavior) {
  const bool backwards = behavior == SplitBehavior::kMergedWithNext;
  if (backwards) std::reverse(segments.begin(), segments.end());
  std::vector<TextRange> pieces;
  bool before = false;  // whether the segment before was a match
  for (const Segment& segment : segments) {
    const bool joins = behavior == SplitBehavior::kContiguous ? segment.is_match == before
                                                              : segment.is_match && !before;
    if (joins && !pieces.empty()) {
      (backwards ? pieces.back().begin : pieces.back().end) =
          backwards ? segment.range.begin : segment.range.end;
    } else {
      pieces.push_back(segment.range);
    }
    before = segment.is_match;
  }
  if (backwards) std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

std::vector<TextRange> Pieces(std::vector<Segment> segments, SplitBehavior behavior) {
  if (behavior != SplitBehavior::kRemoved && behavior != SplitBehavior::kIsolated) {
    return Joined(std::move(segments), behavior);
  }
  std::vector<TextRange> pieces;
  for (const Segment& segment : segments) {
    if (segment.is_match && behavior == SplitBehavior::kRemoved) continue;
    pieces.push_back(segment.range);
  }
  return pieces;
}

AlignedText Slice(const AlignedText& text, TextRange range) {
  AlignedText slice;
  slice.Append(text, range);
  return slice;
}

}  // namespace

absl::Status PreTokenizer::Split(const Step& step, CutText* cut) {
  std::vector<TextRange> pieces;
  for (const TextRange piece : cut->pieces) {
    RIVULET_ASSIGN_OR_RETURN(const std::vector<TextRange> matches,
                             step.pattern.FindAll(cut->text.text(piece)));
    for (const TextRange made : Pieces(Segments(piece, matches, step.inverted), step.behavior)) {
      if (made.begin != made.end) pieces.push_back(made);
    }
  }
  cut->pieces = std::move(pieces);
  return absl::OkStatus();
}

// Steps that change the text of every piece.
void PreTokenizer::Rewrite(const Step& step, CutText* cut) {
  CutText out;
  for (const TextRange piece : cut->pieces) {
    const size_t begin = out.text.size();
    const absl::string_view text = cut->text.text(piece);
    if (step.kind == Step::Kind::kByteMap) {
      for (size_t i = 0; i < text.size(); ++i) {
        out.text.Append(ByteAlphabet()[static_cast<uint8_t>(text[i])],
                        cut->text.span(piece.begin + i));
      }
    } else if (step.kind == Step::Kind::kPrefixSpace) {
      if (!absl::StartsWith(text, " ")) out.text.Append(" ", cut->text.span(piece.begin));
      out.text.Append(cut->text, piece);
    } else {
      const AlignedText spaced = ReplaceText(" ", step.replacement, Slice(cut->text, piece));
      const bool wanted = step.prepend == Prepend::kAlways ||
                          (step.prepend == Prepend::kFirst && spaced.span(0).begin == 0);
      if (wanted && !absl::StartsWith(spaced.text(), step.replacement)) {
        out.text.Append(step.replacement, spaced.span(0));
      }
      out.text.Append(spaced, {0, spaced.size()});
    }
    out.pieces.push_back({begin, out.text.size()});
  }
  *cut = std::move(out);
}

absl::StatusOr<CutText> PreTokenizer::Cut(AlignedText text) const {
  CutText cut;
  if (!text.empty()) cut.pieces.push_back({0, text.size()});
  cut.text = std::move(text);
  for (const Step& step : steps_) {
    if (step.kind == Step::Kind::kSplit) {
      RIVULET_RETURN_IF_ERROR(Split(step, &cut));
    } else {
      Rewrite(step, &cut);
    }
  }
  return cut;
}

}  // namespace rivulet
