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
  const std::span<const int32_t> prediction = asked_.prediction;
  const size_t all = prediction.size() + given.size(), end = std::min(all, learned_ + kPiece);
  for (; learned_ < end; ++learned_) {
    const bool predicted = learned_ < prediction.size();
    index_.Push(predicted ? prediction[learned_] : given[learned_ - prediction.size()]);
    if (learned_ + 1 == prediction.size()) index_.EndPrediction();
  }
  complete_ = learned_ == all;
  if (!complete_) return;
  index_.BeginReply();
  for (const int32_t token : drawn_) index_.Push(token);
  drawn_ = {};
  index_.Search();
}

void Drafter::OnDrawn(int32_t token) {
  guesses_.clear();
  if (!complete_) return drawn_.push_back(token);
  index_.Push(token);
  index_.Search();
}

DraftView Drafter::View(int64_t most) const {
  if (asked_.drafts) most = std::min<int64_t>(most, *asked_.drafts);
  const DraftAcceptance& own = acceptance_[source()];
  DraftView view = {static_cast<int>(most), !asked_.drafts, own.rate(), own.was_right()};
  if (source() == kLookup) return view;
  view.wanted = {view.most, own.rate(), view.adaptive};
  view.adaptive = false;  // the guesses that are here were asked for because they pay
  view.most = std::min(view.most, static_cast<int>(guesses_.size()));
  return view;
}

void Drafter::AddDrafts(int most, std::vector<int32_t>* drafts) {
  from_ = source();
  if (from_ == kLookup) return index_.AddDrafts(most, drafts);
  drafts->insert(drafts->end(), guesses_.begin(), guesses_.begin() + most);
}

}  // namespace rivulet
