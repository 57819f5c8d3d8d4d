// SPDX-License-Identifier: Apache-2.0
#include "server/engine/sequences/drafter.h"

#include <algorithm>

namespace rivulet {

static_assert(kMostPrediction < LookupIndex::kMostTokens);

void Drafter::BeginRow(std::span<const int32_t> given, bool few_rows) {
  masks.clear();
  const bool of_use = few_rows || asked_.drafts;
  if (!of_use) complete_ = false;
  if (of_use && !complete_) Learn(given);
}

void Drafter::Learn(std::span<const int32_t> given) {
  const std::span<const int32_t> prediction = asked_.prediction;
  const size_t before_reply = prediction.size() + given.size();
  const size_t all = before_reply + drawn_.size();
  for (const size_t end = std::min(all, learned_ + kPiece); learned_ < end; ++learned_) {
    const size_t at = learned_;
    index_.Push(at < prediction.size() ? prediction[at]
                : at < before_reply    ? given[at - prediction.size()]
                                       : drawn_[at - before_reply]);
    if (at + 1 == prediction.size()) index_.EndPrediction();
    if (at + 1 == before_reply) index_.BeginReply();
  }
  complete_ = learned_ == all;
  if (!complete_) return;
  drawn_.clear();
  learned_ = before_reply;
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
