// SPDX-License-Identifier: Apache-2.0
// Scheduler: who gets a slot, and what the next run holds. Pure functions of what they are given:
// no clock, no threads, no backend.
//
// Admission is first in, first out: a request that needs n slots waits at the head until n are
// free, and nothing overtakes it, so a large request cannot starve.
//
// A run holds every session that can decode, one token each. Prompt tokens share a budget per run,
// dealt in order of admission, so that a long prompt delays the running replies by a bounded time.
// Where more sessions want a row than the backend has, the ones served longest ago go first; with
// equal age, the ones admitted first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/backend.h"

namespace rivulet {

// How many requests from the head of the queue get their slots now.
//   slots_needed  per waiting request, oldest first
int CountAdmissible(std::span<const int> slots_needed, int free_slots);

// What the scheduler knows about a session that has something to feed. In order of admission.
struct SessionView {
  int64_t prefill_tokens =
      0;  // prompt or scored tokens still to feed; 0: it decodes, one token a step
  uint64_t last_served = 0;  // number of the last run it had a row in; 0: none yet
  bool single_step = false;  // has stop strings or a near deadline: look at it after each step
};

struct ScheduleOptions {
  int prefill_tokens_busy =
      64;  // prompt tokens a run while at least one session decodes; at least 1
  int prefill_tokens_idle = 256;  // ... while none does
};

struct PlannedRow {
  int session = 0;  // index into the views
  int tokens = 0;   // to feed; at most prefill_tokens, 1 for a session that decodes
};

struct Plan {
  std::vector<PlannedRow> rows;  // in order of admission; empty only if there are no views
  int num_steps = 1;
};

// Plans runs; keeps its working memory between calls. Thread: one.
class Scheduler {
 public:
  // REQUIRES: max_rows, max_tokens, max_steps >= 1.
  Scheduler(const BackendLimits& limits, const ScheduleOptions& options);

  // Fills `plan` (its memory is reused). `waiting`: requests wait for a slot, so the run must be
  // short.
  void PlanRun(std::span<const SessionView> sessions, bool waiting, Plan* plan);

 private:
  // Fills share_: the budget in equal parts, and what a short prompt leaves of its part goes to the
  // longer ones, so that nobody waits behind a long prompt (max-min fairness). With more prompts
  // than budget, those served longest ago get one token each.
  void SharePrefill(std::span<const SessionView> sessions, int64_t budget);
  void KeepOldestServed(std::span<const SessionView> sessions, size_t max_rows, Plan* plan);

  const int max_rows_;  // also bounded by max_tokens: a row feeds at least one
  const int max_tokens_;
  const int long_run_;  // steps of a run that nobody waits for
  const ScheduleOptions options_;
  std::vector<int64_t> share_;      // [sessions]
  std::vector<size_t> prefilling_;  // working memory of SharePrefill
};

}  // namespace rivulet
