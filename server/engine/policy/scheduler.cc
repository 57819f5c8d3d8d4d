// SPDX-License-Identifier: Apache-2.0
#include "server/engine/policy/scheduler.h"

#include <algorithm>

namespace rivulet {

Scheduler::Scheduler(const BackendLimits& limits, const ScheduleOptions& options)
    : max_rows_(std::min(limits.max_rows, limits.max_tokens)),
      max_tokens_(limits.max_tokens),
      long_run_(std::clamp(limits.preferred_steps, 1, std::max(1, limits.max_steps))),
      options_(options) {}

void Scheduler::PlanRun(std::span<const SequenceView> sequences, uint64_t run, bool waiting,
                        RunPlan* plan) {
  plan->rows.clear();
  beside_free_ = std::ranges::any_of(sequences, [](const SequenceView& view) {
    return view.prefill_tokens == 0 && !view.constrained;
  });
  size_t decoding = 0;
  bool single_step = false;
  int64_t first_end = long_run_;  // no row is known to end before
  for (const SequenceView& view : sequences) {
    if (FeedsOne(view)) ++decoding;
    single_step |= view.single_step || view.prefill_tokens > 0;
    first_end = std::min(first_end, view.steps_left);
  }
  const int64_t steps = waiting ? std::max<int64_t>(1, first_end) : long_run_;
  plan->num_steps = single_step ? 1 : static_cast<int>(steps);

  // At least one token, or decoding rows that use up the backend's tokens would starve the prompts;
  // the rows are then cut below to max_rows_, each with one token.
  const int64_t room = int64_t{max_tokens_} - static_cast<int64_t>(decoding);
  int64_t budget = decoding > 0 ? options_.prefill_tokens_busy : options_.prefill_tokens_idle;
  budget = std::max<int64_t>(1, std::min(budget, room));
  SharePrefill(sequences, budget);
  for (size_t i = 0; i < sequences.size(); ++i) {
    const int64_t tokens = FeedsOne(sequences[i]) ? 1 : share_[i];
    if (tokens > 0) plan->rows.push_back({static_cast<int>(i), static_cast<int>(tokens)});
  }
  if (plan->rows.size() > static_cast<size_t>(max_rows_)) KeepLargestClaims(sequences, run, plan);
}

void Scheduler::SharePrefill(std::span<const SequenceView> sequences, int64_t budget) {
  share_.assign(sequences.size(), 0);
  prefilling_.clear();
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (!FeedsOne(sequences[i])) prefilling_.push_back(i);
  }
  if (static_cast<int64_t>(prefilling_.size()) > budget) {
    const auto served_earlier = [sequences](size_t a, size_t b) {
      return sequences[a].last_served != sequences[b].last_served
                 ? sequences[a].last_served < sequences[b].last_served
                 : a < b;
    };
    std::sort(prefilling_.begin(), prefilling_.end(), served_earlier);
    prefilling_.resize(static_cast<size_t>(budget));
  }
  const auto shorter = [sequences](size_t a, size_t b) {
    return sequences[a].prefill_tokens != sequences[b].prefill_tokens
               ? sequences[a].prefill_tokens < sequences[b].prefill_tokens
               : a < b;
  };
  std::sort(prefilling_.begin(), prefilling_.end(), shorter);
  for (size_t k = 0; k < prefilling_.size(); ++k) {
    const size_t i = prefilling_[k];
    const int64_t equal = budget / static_cast<int64_t>(prefilling_.size() - k);
    share_[i] = std::min(sequences[i].prefill_tokens, equal);
    budget -= share_[i];
  }
}

void Scheduler::KeepLargestClaims(std::span<const SequenceView> sequences, uint64_t run,
                                  RunPlan* plan) {
  const auto view_of = [sequences](const PlannedRow& row) -> const SequenceView& {
    return sequences[static_cast<size_t>(row.sequence)];
  };
  const auto goes_first = [](const Claim& a, const Claim& b) {
    if (a.turn != b.turn) return a.turn < b.turn;
    return a.claim != b.claim ? a.claim > b.claim : a.row.sequence < b.row.sequence;
  };
  claims_.clear();
  tenants_.clear();
  for (const PlannedRow& row : plan->rows) {
    const SequenceView& view = view_of(row);
    const int weight_bits = kNumPriorities - 1 - static_cast<int>(view.priority);
    claims_.push_back({0, (run - view.last_served) << weight_bits, row});
    TenantRows& tenant = tenants_[view.tenant];
    tenant.last_served = std::max(tenant.last_served, view.last_served);
  }
  if (tenants_.size() > 1) {
    std::sort(claims_.begin(), claims_.end(), goes_first);
    for (Claim& claim : claims_) {
      TenantRows& tenant = tenants_[view_of(claim.row).tenant];
      claim.turn = tenant.rows++;
      claim.claim = run - tenant.last_served;
    }
  }
  const auto end = claims_.begin() + max_rows_;
  std::nth_element(claims_.begin(), end, claims_.end(), goes_first);
  claims_.erase(end, claims_.end());
  std::sort(claims_.begin(), claims_.end(),
            [](const Claim& a, const Claim& b) { return a.row.sequence < b.row.sequence; });
  plan->rows.clear();
  for (const Claim& claim : claims_) plan->rows.push_back(claim.row);
}

}  // namespace rivulet
