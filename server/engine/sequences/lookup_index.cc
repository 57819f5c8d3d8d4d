// SPDX-License-Identifier: Apache-2.0
#include "server/engine/sequences/lookup_index.h"

#include <algorithm>

namespace rivulet {

void LookupIndex::EndPrediction() {
  predicts_ = true;
  Push(kBorder);
}

void LookupIndex::BeginReply() {
  if (!predicts_ || !Remembers(0)) return;
  match_ = 0;
  length_ = kLongest;
}

void LookupIndex::Link(uint32_t end) {
  if (end < kShortest) return;
  uint64_t hash = 0;
  for (uint32_t i = 1; i <= kShortest; ++i) {
    hash = (hash ^ static_cast<uint32_t>(At(end - i))) * 0x9E3779B97F4A7C15u;
  }
  uint32_t& latest = latest_[static_cast<size_t>(hash >> 32) & (latest_.size() - 1)];
  earlier_[(end - 1) % kMostTokens] = latest;
  latest = end;
}

// While all tokens are remembered, there are as many chains as tokens.
void LookupIndex::Grow() {
  latest_.assign(2 * latest_.size(), kNone);
  for (uint32_t end = 1; end <= end_; ++end) Link(end);
}

void LookupIndex::Push(int32_t token) {
  const bool goes_on = match_ != kNone && Remembers(match_) && At(match_) == token;
  match_ = goes_on ? match_ + 1 : kNone;
  length_ = goes_on ? std::min(length_ + 1, kLongest) : 0;
  if (tokens_.size() < kMostTokens) {
    tokens_.push_back(token);
    earlier_.push_back(kNone);
  } else {
    tokens_[end_ % kMostTokens] = token;
  }
  Link(++end_);
  if (end_ == latest_.size() && end_ < kMostTokens) Grow();
}

int LookupIndex::EqualBefore(uint32_t position) const {
  int length = 0;
  while (length < kLongest && static_cast<uint32_t>(length) < position &&
         Remembers(position - static_cast<uint32_t>(length) - 1) &&
         At(position - static_cast<uint32_t>(length) - 1) ==
             At(end_ - static_cast<uint32_t>(length) - 1)) {
    ++length;
  }
  return length;
}

void LookupIndex::Search() {
  if (length_ == kLongest || end_ < kShortest) return;
  uint32_t position = earlier_[(end_ - 1) % kMostTokens];
  for (int i = 0; i < kMostCandidates && position != kNone && Remembers(position); ++i) {
    const int length = EqualBefore(position);
    if (length >= kShortest && length > length_) {
      match_ = position;
      length_ = length;
    }
    if (length_ == kLongest) return;
    position = earlier_[(position - 1) % kMostTokens];
  }
}

void LookupIndex::AddDrafts(int most, std::vector<int32_t>* drafts) const {
  if (!found()) return;
  const size_t begin = drafts->size();
  for (int i = 0; i < most; ++i) {
    const uint32_t position = match_ + static_cast<uint32_t>(i);
    // Behind the sequence's end, its drafts are taken to repeat themselves.
    const int32_t token =
        position < end_ ? At(position) : (*drafts)[begin + size_t(position - end_)];
    if (token == kBorder) return;
    drafts->push_back(token);
  }
}

}  // namespace rivulet
