// SPDX-License-Identifier: Apache-2.0
#include "server/engine/sequences/drafter.h"

#include <algorithm>

namespace rivulet {

static_assert(kMostPrediction < LookupIndex::kMostTokens);

void Drafter::BeginRow(std::span<const int32_t> given) {
  masks.clear();
  if (!complete_) Learn(given);
}

void Drafter::Learn(std::span<const int32_t> given) {
  const size_t end = std::min(given.size(), learned_ + kPiece);
  for (; learned_ < end; ++learned_) index_.Push(given[learned_]);
  complete_ = learned_ == given.size();
  if (!complete_) return;
  index_.BeginReply();
  for (const int32_t token : drawn_) index_.Push(token);
  drawn_ = {};
  index_.Search();
}

void Drafter::OnDrawn(int32_t token) {
  if (!complete_) return drawn_.push_back(token);
  index_.Push(token);
  index_.Search();
}

DraftView Drafter::View(int64_t most) const {
  if (!complete_ || !index_.found()) most = 0;
  if (asked_.drafts) most = std::min<int64_t>(most, *asked_.drafts);
  return {static_cast<int>(most), !asked_.drafts, acceptance_.rate(), acceptance_.was_right()};
}

}  // namespace rivulet
