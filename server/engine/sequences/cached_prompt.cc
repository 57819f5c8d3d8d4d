// SPDX-License-Identifier: Apache-2.0
#include "server/engine/sequences/cached_prompt.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace rivulet {

bool KeepPlan::HasPoint(int64_t fed) const {
  return std::binary_search(points_.begin(), points_.end(), fed);
}

int64_t KeepPlan::DistanceToNextPoint(int64_t fed) const {
  int64_t room = std::numeric_limits<int64_t>::max();
  if (every_ > 0) room = std::max<int64_t>(1, last_ + every_ - fed);
  const auto next = std::upper_bound(points_.begin(), points_.end(), fed);
  return next == points_.end() ? room : std::min(room, *next - fed);
}

CachedPrompt::CachedPrompt(const PromptCacheSpec& spec, absl::string_view tenant, int64_t bos)
    : scope_(PrefixCache::Scope(tenant, spec.salt)), positions_(spec.positions), bos_(bos) {}

KeptCheckpoint CachedPrompt::Find(PrefixCache* cache, std::span<const int32_t> tokens,
                                  int64_t most_fed) {
  PrefixCache::Match match = cache->Find(scope_, tokens, most_fed - bos_);
  shared_fed_ = match.shared + bos_;
  if (match.state == nullptr) return {};
  return {match.depth + bos_, std::move(match.state)};
}

std::vector<int64_t> CachedPrompt::Points(int64_t start, int64_t end, int64_t spacing,
                                          int64_t least_gain) const {
  std::vector<int64_t> asked, points;
  for (const int64_t position : positions_) asked.push_back(std::min(position + bos_, end));
  points = asked;
  const int64_t step = std::max(spacing, (end + kStatesOnTheWay - 1) / kStatesOnTheWay);
  for (int64_t fed = step; fed < end; fed += step) points.push_back(fed);
  points.push_back(std::min(shared_fed_, end));
  points.push_back(end);
  std::sort(points.begin(), points.end());
  std::sort(asked.begin(), asked.end());
  int64_t last = start;
  std::erase_if(points, [&](int64_t fed) {
    const bool wanted = std::binary_search(asked.begin(), asked.end(), fed);
    if (fed <= std::max(last, bos_) || (!wanted && fed - last < least_gain)) return true;
    last = fed;
    return false;
  });
  return points;
}

void CachedPrompt::Keep(PrefixCache* cache, std::span<const int32_t> tokens, int64_t fed,
                        StatePtr state) const {
  cache->Keep(scope_, tokens.first(static_cast<size_t>(fed - bos_)), std::move(state));
}

}  // namespace rivulet
