// SPDX-License-Identifier: Apache-2.0
// `model` of tokenizer.json: byte-pair encoding by merge ranks.
//
// A piece is first a token for each code point (or, with byte_fallback, a token <0xHH> for each
// byte of one that the vocabulary lacks, or unk_token). Then the pair with the lowest rank, the
// leftmost of equals, becomes one token, until no pair is a merge. With ignore_merges a piece that
// is a token as a whole stays one.
// Cost: at most 3 n entries of a queue for n code points, O(n log n), whatever the text and merges.
// Memory: a long piece is cut where no merge has a left token that ends and a right one that begins
// like the tokens there, as no merge can cross such a place.
// Sources: Sennrich et al., 2016 (arXiv:1508.07909); the order of ties is that of `tokenizers`.
// Tested by: tests/unit/model/text/tokenizer_json_test.cc, tests/e2e/cli/tokenizer_test.py
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

// One above the largest id of a vocabulary, added tokens included.
constexpr int32_t kMaxVocabularyIds = 1 << 20;

struct BpeToken {
  int32_t id = 0;
  uint32_t bytes = 0;  // of the piece that it covers
};

// The vocabulary and its merges. Thread: const calls from any thread.
class BpeModel {
 public:
  // Errors: INVALID_TOKENIZER (ids that are no whole numbers below kMaxVocabularyIds or stand
  // twice, merges of or to what is no token, merges that stand twice), UNSUPPORTED_TOKENIZER
  // (another type than BPE, dropout, affixes).
  static absl::StatusOr<BpeModel> Create(const JsonValue& model, absl::string_view path);

  BpeModel(BpeModel&&) = default;
  BpeModel& operator=(BpeModel&&) = default;

  // The id of a token, -1 where it is none.
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
};

// Encodes the pieces of a text, one after the other. Keeps its memory from piece to piece.
// Thread: one at a time. Lifetime: the model and the budget must outlive it.
class BpeEncoder {
 public:
  BpeEncoder(const BpeModel& model, TextBudget* budget);

  // Makes tokens() those of `piece` (UTF-8). Returns the offset of a code point that the vocabulary
  // cannot express, or piece.size(). Errors: TextBudget::status().
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
  // A pair that was a merge when it was found: the symbol at `at` with the one behind it.
  struct Candidate {
    int32_t rank = 0;
    int32_t at = 0;
    int32_t id = 0;  // of the merged token
    friend bool operator>(const Candidate& a, const Candidate& b) {
      return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
    }
  };

  // These three: false where the budget has ended the work.
  bool AddCharacter(absl::string_view character, uint32_t code_point, bool* known);
  bool Add(int32_t id, size_t bytes, BpeModel::Ends ends);
  bool Merge();  // the symbols, which become tokens
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
  size_t reserved_ = 0;           // symbols that the budget has
  uint32_t last_ = 0;             // code point of the symbol before
  bool after_unk_ = false;
};

}  // namespace rivulet
