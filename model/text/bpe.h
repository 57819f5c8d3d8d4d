// SPDX-License-Identifier: Apache-2.0
// `model` of tokenizer.json: byte-pair encoding by merge ranks (BPE), or one token for each piece
// (WordLevel), with unk_token for a piece that the vocabulary lacks.
//
// BPE: a piece begins as one token per code point (for a code point that the vocabulary lacks: a
// token <0xHH> per byte with byte_fallback, or unk_token). Then the pair with the lowest rank, the
// leftmost of equals, becomes one token, until no pair is a merge. With ignore_merges a whole piece
// that is a token is not split.
// Cost: at most 3 n entries of a queue for n code points, O(n log n), whatever the text and merges.
// Memory: a long piece is cut between two code points if no merge has a left token that ends with
// the first and a right token that begins with the second: no merge can cross such a place.
// Sources: Sennrich et al., 2016 (arXiv:1508.07909); ties are resolved as in `tokenizers`. Tested
// by: tests/unit/model/text/tokenizer_json_test.cc, tests/e2e/cli/tokenizer_test.py
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/base/json_reader.h"
#include "model/text/text_budget.h"

namespace rivulet {

// Limit of a vocabulary's ids, with added tokens: all ids are below it.
constexpr int32_t kMaxVocabularyIds = 1 << 20;

struct BpeToken {
  int32_t id = 0;
  uint32_t bytes = 0;  // bytes of the piece that the token covers
};

// The vocabulary, and BPE's merges. Thread: const calls from any thread.
class BpeModel {
 public:
  // Errors: INVALID_TOKENIZER (ids that are not whole numbers below kMaxVocabularyIds or appear
  // twice, merges whose parts or result are no token, merges that appear twice),
  // UNSUPPORTED_TOKENIZER (another type than BPE and WordLevel, dropout, affixes).
  static absl::StatusOr<BpeModel> Create(const JsonValue& model, absl::string_view path);

  BpeModel(BpeModel&&) = default;
  BpeModel& operator=(BpeModel&&) = default;

  // The id of a token, -1 if there is no such token.
  int32_t IdOf(absl::string_view token) const;
  // tokens()[id]; empty for an id that no token has.
  const std::vector<std::string>& tokens() const { return tokens_; }

 private:
  struct Merge {
    int32_t rank = 0;
    int32_t id = 0;
  };
  friend class BpeEncoder;
  struct Ends {  // code points
    uint32_t first = 0, last = 0;
  };

  BpeModel() = default;
  absl::Status ReadVocabulary(JsonReader* fields);
  absl::Status ReadMerges(JsonReader* fields);
  absl::Status AddMerge(absl::string_view left, absl::string_view right, int32_t rank,
                        absl::string_view path);
  absl::Status ReadOptions(JsonReader* fields);
  // Of a token, which is not empty.
  static Ends EndsOf(absl::string_view token);
  const Merge* Find(int32_t left, int32_t right) const;
  static uint64_t Pair(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }

  std::vector<std::string> tokens_;
  absl::flat_hash_map<absl::string_view, int32_t> ids_;  // keys are of tokens_
  absl::flat_hash_map<uint64_t, Merge> merges_;          // Pair -> merge
  absl::flat_hash_set<uint64_t> crossed_;                // last of left, first of right, as a Pair
  std::optional<std::array<int32_t, 256>> byte_ids_;     // of byte_fallback
  int32_t unk_id_ = -1;
  bool fuse_unk_ = false;
  bool ignore_merges_ = false;
  bool whole_pieces_ = false;  // WordLevel
};

// Encodes the pieces of a text, one after the other. Reuses its memory for each piece.
// Thread: one at a time. Lifetime: the model and the budget must outlive it.
class BpeEncoder {
 public:
  BpeEncoder(const BpeModel& model, TextBudget* budget);

  // Sets tokens() to the tokens of `piece` (UTF-8). Returns the offset of a code point that the
  // vocabulary cannot express, or piece.size(). Errors: TextBudget::status().
  absl::StatusOr<size_t> Encode(absl::string_view piece);
  const std::vector<BpeToken>& tokens() const { return tokens_; }

 private:
  // A token of the piece, in a list linked by index. Absorbed ones have `bytes` 0.
  struct Symbol {
    int32_t id = 0;
    uint32_t bytes = 0;
    int32_t before = -1;
    int32_t next = -1;
  };
  // A pair that was a merge when it was found: the symbol at `at` and the next one.
  struct Candidate {
    int32_t rank = 0;
    int32_t at = 0;
    int32_t id = 0;  // of the merged token
    friend bool operator>(const Candidate& a, const Candidate& b) {
      return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
    }
  };

  // These three return false if the budget has ended the work.
  bool AddCharacter(absl::string_view character, uint32_t code_point, bool* known);
  bool Add(int32_t id, size_t bytes, BpeModel::Ends ends);
  bool Merge();  // merges the symbols and stores them as tokens
  bool IsCandidate(int32_t at, Candidate* candidate) const;
  void Push(int32_t at);
  void Absorb(Symbol* left, int32_t at, int32_t id);

  const BpeModel& model_;
  TextBudget* const budget_;
  BudgetedBytes bytes_;
  BpeModel::Ends unk_ends_;
  std::vector<BpeToken> tokens_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> queue_;  // a heap: the first to be merged in front
  size_t reserved_ = 0;           // symbols for which the budget has memory
  uint32_t last_ = 0;             // code point of the symbol before
  bool after_unk_ = false;
};

}  // namespace rivulet
