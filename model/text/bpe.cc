// SPDX-License-Identifier: Apache-2.0
#include "model/text/bpe.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "model/base/error.h"
#include "model/base/utf8.h"

namespace rivulet {

namespace {

// A stretch of this number of tokens is cut at the next allowed place. Most pieces are shorter.
constexpr size_t kShortSymbols = 64;

}  // namespace

int32_t BpeModel::IdOf(absl::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

const BpeModel::Merge* BpeModel::Find(int32_t left, int32_t right) const {
  const auto found = merges_.find(Pair(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

BpeModel::Ends BpeModel::EndsOf(absl::string_view token) {
  Ends ends;
  DecodeUtf8(token, &ends.first);
  size_t last = token.size() - 1;
  while (last > 0 && IsUtf8Tail(token[last])) --last;
  DecodeUtf8(token.substr(last), &ends.last);
  return ends;
}

BpeEncoder::BpeEncoder(const BpeModel& model, TextBudget* budget)
    : model_(model), budget_(budget), bytes_(budget) {
  if (model.unk_id_ < 0) return;
  unk_ends_ = BpeModel::EndsOf(model.tokens_[static_cast<size_t>(model.unk_id_)]);
}

absl::StatusOr<size_t> BpeEncoder::Encode(absl::string_view piece) {
  tokens_.clear();
  symbols_.clear();
  after_unk_ = false;
  if (model_.ignore_merges_ || model_.whole_pieces_) {
    int32_t id = model_.IdOf(piece);
    if (id < 0 && model_.whole_pieces_) id = model_.unk_id_;
    if (id >= 0) tokens_.push_back({id, static_cast<uint32_t>(piece.size())});
    if (id >= 0 || model_.whole_pieces_) return id >= 0 ? piece.size() : 0;
  }
  for (size_t at = 0; at < piece.size();) {
    uint32_t code_point = 0;
    const size_t length = DecodeUtf8(piece.substr(at), &code_point);
    bool known = true;
    if (!budget_->Step(1) || !AddCharacter(piece.substr(at, length), code_point, &known)) {
      return budget_->status();
    }
    if (!known) return at;
    at += length;
  }
  if (!Merge()) return budget_->status();
  return piece.size();
}

bool BpeEncoder::AddCharacter(absl::string_view character, uint32_t code_point, bool* known) {
  const int32_t id = model_.IdOf(character);
  const bool after_unk = std::exchange(after_unk_, id < 0 && !model_.byte_ids_.has_value());
  if (id >= 0) return Add(id, character.size(), {code_point, code_point});
  if (model_.byte_ids_.has_value()) {
    return std::all_of(character.begin(), character.end(), [this](char byte) {
      return Add((*model_.byte_ids_)[static_cast<uint8_t>(byte)], 1, {'<', '>'});
    });
  }
  *known = model_.unk_id_ >= 0;
  if (!*known) return true;
  if (!after_unk || !model_.fuse_unk_) return Add(model_.unk_id_, character.size(), unk_ends_);
  symbols_.back().bytes += static_cast<uint32_t>(character.size());
  return true;
}

bool BpeEncoder::Add(int32_t id, size_t bytes, BpeModel::Ends ends) {
  const bool cut = symbols_.size() >= kShortSymbols &&
                   !model_.crossed_.contains(BpeModel::Pair(static_cast<int32_t>(last_),
                                                            static_cast<int32_t>(ends.first)));
  if (cut && !Merge()) return false;
  if (symbols_.size() == reserved_) {
    const size_t more = std::max(reserved_, kShortSymbols);
    if (!bytes_.Add(more * (sizeof(Symbol) + sizeof(Candidate)))) return false;
    reserved_ += more;
    symbols_.reserve(reserved_);
  }
  symbols_.push_back({id, static_cast<uint32_t>(bytes)});
  last_ = ends.last;
  return true;
}

bool BpeEncoder::IsCandidate(int32_t at, Candidate* candidate) const {
  const Symbol& left = symbols_[static_cast<size_t>(at)];
  if (left.next < 0) return false;
  const BpeModel::Merge* merge = model_.Find(left.id, symbols_[static_cast<size_t>(left.next)].id);
  if (merge == nullptr) return false;
  *candidate = {merge->rank, at, merge->id};
  return true;
}

void BpeEncoder::Push(int32_t at) {
  Candidate candidate;
  if (!IsCandidate(at, &candidate)) return;
  queue_.push_back(candidate);
  std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
}

// Absorbs the symbol behind `left`, which is at `at`: both become the token `id`.
void BpeEncoder::Absorb(Symbol* left, int32_t at, int32_t id) {
  Symbol& right = symbols_[static_cast<size_t>(left->next)];
  left->id = id;
  left->bytes += right.bytes;
  left->next = right.next;
  right.bytes = 0;
  if (left->next >= 0) symbols_[static_cast<size_t>(left->next)].before = at;
  if (left->before >= 0) Push(left->before);
  Push(at);
}

bool BpeEncoder::Merge() {
  const auto count = static_cast<int32_t>(symbols_.size());
  for (int32_t i = 0; i < count; ++i) {
    symbols_[static_cast<size_t>(i)].before = i - 1;
    symbols_[static_cast<size_t>(i)].next = i + 1 < count ? i + 1 : -1;
  }
  queue_.clear();
  Candidate best;
  for (int32_t i = 0; i < count; ++i) {
    if (IsCandidate(i, &best)) queue_.push_back(best);
  }
  std::make_heap(queue_.begin(), queue_.end(), std::greater<>());
  while (!queue_.empty()) {
    best = queue_.front();
    std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
    queue_.pop_back();
    if (!budget_->Step(1)) return false;
    Symbol& left = symbols_[static_cast<size_t>(best.at)];
    Candidate now;
    const bool merges = left.bytes != 0 && IsCandidate(best.at, &now);
    if (merges && now.id == best.id) Absorb(&left, best.at, best.id);  // else merged meanwhile
  }
  for (const Symbol& left : symbols_) {
    if (left.bytes != 0) tokens_.push_back({left.id, left.bytes});
  }
  symbols_.clear();
  return true;
}

}  // namespace rivulet
