// SPDX-License-Identifier: Apache-2.0
#include "model/text/bpe.h"

#include <functional>
#include <queue>

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

absl::StatusOr<size_t> BpeModel::Symbols(absl::string_view piece, std::vector<Symbol>* symbols,
                                         TextBudget* budget) const {
  bool after_unk = false;
  for (size_t at = 0; at < piece.size();) {
    if (!budget->Step(1)) return budget->status();
    uint32_t code_point = 0;
    const size_t length = DecodeUtf8(piece.substr(at), &code_point);
    const absl::string_view character = piece.substr(at, length);
    const int32_t id = IdOf(character);
    if (id >= 0) {
      symbols->push_back({id, static_cast<uint32_t>(length)});
    } else if (byte_ids_.has_value()) {
      for (const char byte : character) {
        symbols->push_back({(*byte_ids_)[static_cast<uint8_t>(byte)], 1});
      }
    } else if (unk_id_ < 0) {
      return at;
    } else if (after_unk && fuse_unk_) {
      symbols->back().bytes += static_cast<uint32_t>(length);
    } else {
      symbols->push_back({unk_id_, static_cast<uint32_t>(length)});
    }
    after_unk = id < 0 && !byte_ids_.has_value();
    at += length;
  }
  for (size_t i = 0; i < symbols->size(); ++i) {
    (*symbols)[i].before = static_cast<int32_t>(i) - 1;
    (*symbols)[i].next = i + 1 < symbols->size() ? static_cast<int32_t>(i) + 1 : -1;
  }
  return piece.size();
}

absl::StatusOr<size_t> BpeModel::Encode(absl::string_view piece, std::vector<BpeToken>* tokens,
                                        TextBudget* budget) const {
  BudgetedBytes bytes(budget);
  constexpr size_t kPerByte = sizeof(Symbol) + sizeof(Candidate) + sizeof(BpeToken);
  if (!bytes.Add(piece.size() * kPerByte)) return budget->status();
  if (ignore_merges_) {
    if (const int32_t id = IdOf(piece); id >= 0) {
      tokens->push_back({id, static_cast<uint32_t>(piece.size())});
      return piece.size();
    }
  }
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  RIVULET_ASSIGN_OR_RETURN(const size_t known, Symbols(piece, &symbols, budget));
  if (known < piece.size()) return known;
  const auto symbol = [&symbols](int32_t at) -> Symbol& {
    return symbols[static_cast<size_t>(at)];
  };
  std::vector<Candidate> found;
  const auto candidate = [&](int32_t at, auto add) {
    const int32_t next = symbol(at).next;
    if (next < 0) return;
    const Merge* merge = Find(symbol(at).id, symbol(next).id);
    if (merge != nullptr) add(Candidate{merge->rank, at, merge->id});
  };
  for (size_t i = 0; i < symbols.size(); ++i) {
    candidate(static_cast<int32_t>(i), [&found](const Candidate& c) { found.push_back(c); });
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>(),
                                                                               std::move(found));
  const auto push = [&queue](const Candidate& c) { queue.push(c); };
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    if (!budget->Step(1)) return budget->status();
    Symbol& left = symbol(best.at);
    if (left.bytes == 0 || left.next < 0) continue;
    Symbol& right = symbol(left.next);
    const Merge* merge = Find(left.id, right.id);
    if (merge == nullptr || merge->id != best.id) continue;  // a neighbour was merged since
    left.id = best.id;
    left.bytes += right.bytes;
    left.next = right.next;
    right.bytes = 0;
    if (left.next >= 0) symbol(left.next).before = best.at;
    if (left.before >= 0) candidate(left.before, push);
    candidate(best.at, push);
  }
  for (const Symbol& left : symbols) {
    if (left.bytes != 0) tokens->push_back({left.id, left.bytes});
  }
  return piece.size();
}

}  // namespace rivulet
