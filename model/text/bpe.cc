// SPDX-License-Identifier: Apache-2.0
#include "model/text/bpe.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "model/base/error.h"
#include "model/base/utf8.h"

namespace rivulet {

// A token of the piece, in a list linked by index. Absorbed ones have `bytes` 0.
struct BpeModel::Symbol {
  int32_t id = 0;
  uint32_t bytes = 0;
  int32_t before = -1;
  int32_t next = -1;
};

// A pair that was a merge when it was found: the symbol at `at` with the one behind it.
struct BpeModel::Candidate {
  int32_t rank = 0;
  int32_t at = 0;
  int32_t id = 0;  // of the merged token
  friend bool operator>(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  }
};

int32_t BpeModel::IdOf(absl::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

const BpeModel::Merge* BpeModel::Find(int32_t left, int32_t right) const {
  const auto found = merges_.find(Pair(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

// The tokens of one piece.
class BpeModel::Work {
 public:
  Work(const BpeModel& model, std::vector<BpeToken>* tokens, TextBudget* budget)
      : model_(model), tokens_(tokens), budget_(budget), bytes_(budget) {
    if (model.unk_id_ >= 0) unk_ends_ = EndsOf(model.tokens_[static_cast<size_t>(model.unk_id_)]);
  }

  absl::StatusOr<size_t> Encode(absl::string_view piece) {
    bool after_unk = false;
    symbols_.reserve(std::min(piece.size(), kShortSymbols));
    for (size_t at = 0; at < piece.size();) {
      if (!budget_->Step(1)) return budget_->status();
      uint32_t code_point = 0;
      const size_t length = DecodeUtf8(piece.substr(at), &code_point);
      const absl::string_view character = piece.substr(at, length);
      const int32_t id = model_.IdOf(character);
      bool good = true;
      if (id >= 0) {
        good = Add(id, length, {code_point, code_point});
      } else if (model_.byte_ids_.has_value()) {
        for (const char byte : character) {
          good = good && Add((*model_.byte_ids_)[static_cast<uint8_t>(byte)], 1, {'<', '>'});
        }
      } else if (model_.unk_id_ < 0) {
        return at;
      } else if (after_unk && model_.fuse_unk_) {
        symbols_.back().bytes += static_cast<uint32_t>(length);
      } else {
        good = Add(model_.unk_id_, length, unk_ends_);
      }
      if (!good) return budget_->status();
      after_unk = id < 0 && !model_.byte_ids_.has_value();
      at += length;
    }
    if (!Merge()) return budget_->status();
    return piece.size();
  }

 private:
  // A stretch of so many tokens is cut where it may be. Most pieces are shorter.
  static constexpr size_t kShortSymbols = 64;
  static constexpr size_t kBytesPerSymbol = sizeof(Symbol) + sizeof(Candidate);

  // False where the budget has ended the work.
  bool Add(int32_t id, size_t bytes, Ends ends) {
    const bool cut = symbols_.size() >= kShortSymbols &&
                     !model_.crossed_.contains(
                         Pair(static_cast<int32_t>(last_), static_cast<int32_t>(ends.first)));
    if (cut && !Merge()) return false;
    if (symbols_.size() == reserved_) {
      const size_t more = std::max(reserved_, kShortSymbols);
      if (!bytes_.Add(more * kBytesPerSymbol)) return false;
      reserved_ += more;
      symbols_.reserve(reserved_);
    }
    symbols_.push_back({id, static_cast<uint32_t>(bytes)});
    last_ = ends.last;
    return true;
  }

  Symbol& symbol(int32_t at) { return symbols_[static_cast<size_t>(at)]; }
  template <typename Add>
  void AddCandidate(int32_t at, Add add) {
    const int32_t next = symbol(at).next;
    if (next < 0) return;
    const BpeModel::Merge* merge = model_.Find(symbol(at).id, symbol(next).id);
    if (merge != nullptr) add(Candidate{merge->rank, at, merge->id});
  }

  // Merges the symbols, which become tokens. False as Add.
  bool Merge() {
    for (size_t i = 0; i < symbols_.size(); ++i) {
      symbols_[i].before = static_cast<int32_t>(i) - 1;
      symbols_[i].next = i + 1 < symbols_.size() ? static_cast<int32_t>(i) + 1 : -1;
    }
    std::vector<Candidate> found;
    for (size_t i = 0; i < symbols_.size(); ++i) {
      AddCandidate(static_cast<int32_t>(i), [&found](const Candidate& c) { found.push_back(c); });
    }
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>(),
                                                                                 std::move(found));
    const auto push = [&queue](const Candidate& c) { queue.push(c); };
    while (!queue.empty()) {
      const Candidate best = queue.top();
      queue.pop();
      if (!budget_->Step(1)) return false;
      Symbol& left = symbol(best.at);
      if (left.bytes == 0 || left.next < 0) continue;
      Symbol& right = symbol(left.next);
      const BpeModel::Merge* merge = model_.Find(left.id, right.id);
      if (merge == nullptr || merge->id != best.id) continue;  // a neighbour was merged since
      left.id = best.id;
      left.bytes += right.bytes;
      left.next = right.next;
      right.bytes = 0;
      if (left.next >= 0) symbol(left.next).before = best.at;
      if (left.before >= 0) AddCandidate(left.before, push);
      AddCandidate(best.at, push);
    }
    for (const Symbol& left : symbols_) {
      if (left.bytes != 0) tokens_->push_back({left.id, left.bytes});
    }
    symbols_.clear();
    return true;
  }

  const BpeModel& model_;
  std::vector<BpeToken>* const tokens_;
  TextBudget* const budget_;
  BudgetedBytes bytes_;
  Ends unk_ends_;
  std::vector<Symbol> symbols_;
  size_t reserved_ = 0;  // symbols that the budget has
  uint32_t last_ = 0;    // code point of the symbol before
};

BpeModel::Ends BpeModel::EndsOf(absl::string_view token) {
  Ends ends;
  DecodeUtf8(token, &ends.first);
  size_t last = token.size() - 1;
  while (last > 0 && (static_cast<uint8_t>(token[last]) & 0xC0) == 0x80) --last;
  DecodeUtf8(token.substr(last), &ends.last);
  return ends;
}

absl::StatusOr<size_t> BpeModel::Encode(absl::string_view piece, std::vector<BpeToken>* tokens,
                                        TextBudget* budget) const {
  if (ignore_merges_) {
    if (const int32_t id = IdOf(piece); id >= 0) {
      tokens->push_back({id, static_cast<uint32_t>(piece.size())});
      return piece.size();
    }
  }
  return Work(*this, tokens, budget).Encode(piece);
}

}  // namespace rivulet
