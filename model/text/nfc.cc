// SPDX-License-Identifier: Apache-2.0
// Canonical composition with offsets.
//
// Every code point of the decomposition has `extra`: 0 for the first code point from a code point
// of the text, 1 for the others. A composition adds `extra` of the second code point to the first,
// less 1. So -n means that the composed code point replaces n code points of the text beside its
// own, and 1 means that it replaces none. The offsets of `tokenizers` follow from the same count.
//
// Marks that Unicode got after version 9 count as starters, and their only composition is not made:
// `tokenizers` has the tables of version 9, and checkpoints were trained on its tokens.
#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "model/base/error.h"
#include "model/base/utf8.h"
#include "model/text/normalizer.h"

namespace rivulet {
namespace {

struct Piece {
  int32_t code_point = 0;
  int extra = 0;
  int combining_class = 0;
};

// Code points with a combining class that Unicode got after version 9, up to version 15.
struct MarkRange {
  int32_t first, last;
};
constexpr MarkRange kNewMarks[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27},
    {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F},
    {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
};
constexpr int32_t kNewComposition = 0x11938;  // of U+11935 and U+11930

int CombiningClass(int32_t code_point) {
  const int combining_class = utf8proc_get_property(code_point)->combining_class;
  if (combining_class == 0) return 0;
  const auto range =
      std::lower_bound(std::begin(kNewMarks), std::end(kNewMarks), code_point,
                       [](const MarkRange& marks, int32_t at) { return marks.last < at; });
  return range != std::end(kNewMarks) && range->first <= code_point ? 0 : combining_class;
}

// The code point that the pair composes to, -1 if there is none.
int32_t ComposePair(int32_t first, int32_t second) {
  utf8proc_int32_t pair[] = {first, second, 0};
  const auto length = utf8proc_normalize_utf32(
      pair, 2, static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  return length == 1 && pair[0] != kNewComposition ? pair[0] : -1;
}

// Decomposes, and sorts marks into canonical order.
std::vector<Piece> Decompose(absl::string_view text) {
  constexpr int kMostPieces = 32;  // from one code point; Unicode's longest has 4
  std::vector<Piece> pieces;
  pieces.reserve(text.size());
  while (!text.empty()) {
    uint32_t code_point = 0;
    text.remove_prefix(DecodeUtf8(text, &code_point));
    utf8proc_int32_t made[kMostPieces] = {};
    if (static_cast<int32_t>(code_point) == kNewComposition) {
      pieces.push_back({kNewComposition, 0, 0});
      continue;
    }
    int boundary = 0;
    const auto count =
        utf8proc_decompose_char(static_cast<int32_t>(code_point), made, kMostPieces,
                                static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE), &boundary);
    for (int i = 0; i < count; ++i) {
      pieces.push_back({made[i], i > 0 ? 1 : 0, CombiningClass(made[i])});
    }
  }
  for (auto at = pieces.begin(); at != pieces.end();) {
    const auto is_starter = [](const Piece& piece) { return piece.combining_class == 0; };
    if (is_starter(*at)) {
      ++at;
      continue;
    }
    const auto end = std::find_if(at, pieces.end(), is_starter);
    std::stable_sort(at, end, [](const Piece& a, const Piece& b) {
      return a.combining_class < b.combining_class;
    });
    at = end;
  }
  return pieces;
}

// Composes in place: a mark or starter that nothing blocks goes into the starter before it.
void Compose(std::vector<Piece>* pieces) {
  size_t kept = 0, starter = 0;
  bool has_starter = false;
  for (size_t i = 0; i < pieces->size(); ++i) {
    const Piece piece = (*pieces)[i];
    if (has_starter) {
      const bool adjacent = kept == starter + 1;
      const int before = (*pieces)[kept - 1].combining_class;
      if (adjacent || before < piece.combining_class) {
        Piece& first = (*pieces)[starter];
        const int32_t composed = ComposePair(first.code_point, piece.code_point);
        if (composed >= 0) {
          first = {composed, first.extra + piece.extra - 1, 0};
          continue;
        }
      }
    }
    if (piece.combining_class == 0) {
      has_starter = true;
      starter = kept;
    }
    (*pieces)[kept++] = piece;
  }
  pieces->resize(kept);
}

size_t NextCodePoint(absl::string_view text, size_t at) {
  uint32_t code_point = 0;
  return at + DecodeUtf8(text.substr(at), &code_point);
}

// Whether no code point before composes with this one or its decomposition, or moves past it:
// letters are starters, and only vowels and final consonants of Hangul compose with a letter
// before.
bool MayBegin(uint32_t code_point) {
  if (code_point < 0x80) return true;
  if (code_point >= 0x1100 && code_point < 0x1200) return false;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LO:
      return true;
    default:
      return false;
  }
}

// The end of a stretch that begins at `begin` and can be composed alone.
size_t StretchEnd(absl::string_view text, size_t begin) {
  constexpr size_t kStretchBytes = 16384;
  size_t at = std::min(begin + kStretchBytes, text.size());
  while (at > begin && at < text.size() && IsUtf8Tail(text[at])) --at;
  while (at < text.size()) {
    uint32_t code_point = 0;
    const size_t length = DecodeUtf8(text.substr(at), &code_point);
    if (MayBegin(code_point)) break;
    at += length;
  }
  return at;
}

// Whether the pieces are the code points of `text`.
bool IsSame(const std::vector<Piece>& pieces, absl::string_view text) {
  for (const Piece& piece : pieces) {
    uint32_t code_point = 0;
    if (text.empty()) return false;
    text.remove_prefix(DecodeUtf8(text, &code_point));
    if (piece.extra != 0 || static_cast<uint32_t>(piece.code_point) != code_point) return false;
  }
  return text.empty();
}

// Appends the pieces of a stretch of `text`.
absl::Status AppendPieces(const std::vector<Piece>& pieces, const AlignedText& text,
                          TextRange stretch, TextBudget* budget, AlignedText* out) {
  size_t at = stretch.begin;  // code points of the text before `at` are taken
  for (const Piece& piece : pieces) {
    std::string bytes;
    AppendUtf8(static_cast<uint32_t>(piece.code_point), &bytes);
    if (!budget->Take(AlignedText::BytesOf(bytes.size()))) return budget->status();
    const bool takes_none = piece.extra > 0;
    const size_t of = takes_none ? at - 1 : at;
    out->Append(bytes, of < stretch.end ? text.span(of) : SourceSpan());
    for (int taken = piece.extra; taken <= 0 && at < stretch.end; ++taken) {
      at = NextCodePoint(text.text(), at);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AlignedText> ComposeCanonically(AlignedText text, TextBudget* budget) {
  const absl::string_view source = text.text();
  const auto is_ascii = [](char c) { return static_cast<uint8_t>(c) < 0x80; };
  AlignedText out;
  bool changed = false;
  for (size_t begin = 0, end = 0; begin < source.size(); begin = end) {
    end = StretchEnd(source, begin);
    const TextRange range = {begin, end};
    const absl::string_view stretch = source.substr(begin, end - begin);
    if (!budget->Step(2 * stretch.size())) return budget->status();
    std::vector<Piece> pieces;
    BudgetedBytes work(budget);
    bool same = std::all_of(stretch.begin(), stretch.end(), is_ascii);
    if (!same) {
      if (!work.Add(2 * stretch.size() * sizeof(Piece))) return budget->status();
      pieces = Decompose(stretch);
      Compose(&pieces);
      same = IsSame(pieces, stretch);
    }
    if (same && !changed) continue;
    if (!changed) {
      if (!budget->Take(AlignedText::BytesOf(begin))) return budget->status();
      out.BeginAs(text);
      out.Reserve(source.size());
      out.Append(text, {0, begin});
      changed = true;
    }
    if (!same) {
      RIVULET_RETURN_IF_ERROR(AppendPieces(pieces, text, range, budget, &out));
      continue;
    }
    if (!budget->Take(AlignedText::BytesOf(stretch.size()))) return budget->status();
    out.Append(text, range);
  }
  if (!changed) return text;
  budget->Give(text.budgeted());
  return out;
}

}  // namespace rivulet
