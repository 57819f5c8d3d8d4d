// SPDX-License-Identifier: Apache-2.0
#include "server/engine/scheduler.h"

#include <algorithm>

namespace rivulet {

int CountAdmissible(std::span<const int> slots_needed, int free_slots) {
  int count = 0;
  for (int needed : slots_needed) {
    if (needed > free_slots) break;
    free_slots -= needed;
    ++count;
  }
  return count;
}

Scheduler::Scheduler(const BackendLimits& limits, const ScheduleOptions& options)
    : max_rows_(std::min(limits.max_rows, limits.max_tokens)),
      max_tokens_(limits.max_tokens),
      long_run_(std::clamp(limits.preferred_steps, 1, std::max(1, limits.max_steps))),
      options_(options) {}

void Scheduler::PlanRun(std::span<const SessionView> sessions, bool waiting, Plan* plan) {
  plan->rows.clear();
  size_t decoding = 0;
  bool single_step = waiting;
  for (const SessionView& view : sessions) {
    if (view.prefill_tokens == 0) ++decoding;
    single_step |= view.single_step || view.prefill_tokens > 0;
  }
  plan->num_steps = single_step ? 1 : long_run_;

  // At least one, or decoding rows that use up the backend's tokens would starve the prompts; the
  // rows are then cut below to max_rows_, each with one token.
  const int64_t room = int64_t{max_tokens_} - static_cast<int64_t>(decoding);
  int64_t budget = decoding > 0 ? options_.prefill_tokens_busy : options_.prefill_tokens_idle;
  budget = std::max<int64_t>(1, std::min(budget, room));
  SharePrefill(sessions, budget);
  for (size_t i = 0; i < sessions.size(); ++i) {
    const int64_t tokens = sessions[i].prefill_tokens == 0 ? 1 : share_[i];
    if (tokens > 0) plan->rows.push_back({static_cast<int>(i), static_cast<int>(tokens)});
  }
  KeepOldestServed(sessions, static_cast<size_t>(max_rows_), plan);
}

void Scheduler::SharePrefill(std::span<const SessionView> sessions, int64_t budget) {
  share_.assign(sessions.size(), 0);
  prefilling_.clear();
  for (size_t i = 0; i < sessions.size(); ++i) {
    if (sessions[i].prefill_tokens > 0) prefilling_.push_back(i);
  }
  if (static_cast<int64_t>(prefilling_.size()) > budget) {
    const auto served_earlier = [sessions](size_t a, size_t b) {
      return sessions[a].last_served != sessions[b].last_served
                 ? sessions[a].last_served < sessions[b].last_served
                 : a < b;
    };
    std::sort(prefilling_.begin(), prefilling_.end(), served_earlier);
    prefilling_.resize(static_cast<size_t>(budget));
  }
  const auto shorter = [sessions](size_t a, size_t b) {
    return sessions[a].prefill_tokens != sessions[b].prefill_tokens
               ? sessions[a].prefill_tokens < sessions[b].prefill_tokens
               : a < b;
  };
  std::sort(prefilling_.begin(), prefilling_.end(), shorter);
  for (size_t k = 0; k < prefilling_.size(); ++k) {
    const size_t i = prefilling_[k];
    const int64_t equal = budget / static_cast<int64_t>(prefilling_.size() - k);
    share_[i] = std::min(sessions[i].prefill_tokens, equal);
    budget -= share_[i];
  }
}

void Scheduler::KeepOldestServed(std::span<const SessionView> sessions, size_t max_rows,
                                 Plan* plan) {
  std::vector<PlannedRow>& rows = plan->rows;
  if (rows.size() <= max_rows) return;
  auto served_earlier = [sessions](const PlannedRow& a, const PlannedRow& b) {
    const uint64_t served_a = sessions[static_cast<size_t>(a.session)].last_served;
    const uint64_t served_b = sessions[static_cast<size_t>(b.session)].last_served;
    return served_a != served_b ? served_a < served_b : a.session < b.session;
  };
  const auto end = rows.begin() + static_cast<std::ptrdiff_t>(max_rows);
  std::nth_element(rows.begin(), end, rows.end(), served_earlier);
  rows.erase(end, rows.end());
  std::sort(rows.begin(), rows.end(),
            [](const PlannedRow& a, const PlannedRow& b) { return a.session < b.session; });
}

}  // namespace rivulet
