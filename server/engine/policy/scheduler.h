// SPDX-License-Identifier: Apache-2.0
// Scheduler: decides what the next run holds. A pure function of its arguments: no clock, no
// threads, no backend. (Who gets a slot: admission.h.)
//
// A run holds every sequence that can decode, with one token each. Prompt tokens share a budget per
// run: while replies are running, all prompts together add at most prefill_tokens_busy tokens to a
// step, and so delay replies by a bounded time. Tokens that a constraint forced are fed like a
// prompt, but one token a run while a reply without a constraint is running: it costs that reply
// what a drawn token would.
//
// Where more sequences want a row than the backend has, the tenants take turns, the tenant served
// longest ago first, until the rows are used up. Within a tenant the sequences with the largest
// claims go first. The claim is the number of runs since the sequence was served last, times 4 for
// high priority, 2 for normal, 1 for low; among equal claims, the sequence admitted first wins. So
// where a sequence of high priority gets a row in every n-th run, a sequence of low priority gets a
// row in about every 4n-th run.
//
// A run is one step long while a prompt is being fed or a row must be checked after each step. Else
// it is as long as the backend prefers, which hides the cost of a Submit. While requests wait for
// slots, it ends with the first row that is known to end, so that its slot is free at once.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "model/backend.h"
#include "server/engine/policy/speculation.h"
#include "server/engine/request.h"

namespace rivulet {

// What the scheduler knows about a sequence that has something to feed. In order of admission.
struct SequenceView {
  int64_t prefill_tokens =
      0;  // prompt or scored tokens still to feed; 0: it decodes, one token per step
  uint64_t last_served = 0;  // number of the last run it had a row in; 0: none yet
  bool single_step = false;  // has stop strings or a near deadline: check it after each step
  Priority priority = Priority::kNormal;
  uint64_t tenant = 0;  // its number (Admission::Add)
  // The most steps that it can still take.
  int64_t steps_left = std::numeric_limits<int64_t>::max();
  bool constrained = false;  // a constraint chooses its tokens
  bool forced = false;       // the tokens to feed are those that its constraint forced
  DraftView drafts = {};     // of one that decodes
};

struct ScheduleOptions {
  int prefill_tokens_busy =
      64;  // prompt tokens per run while at least one sequence decodes; at least 1
  int prefill_tokens_idle = 256;  // the same while no sequence decodes
};

struct PlannedRow {
  int sequence = 0;  // index into the views
  int tokens = 0;    // to feed; at most prefill_tokens, 1 for a sequence that feeds single tokens
};

struct RunPlan {
  std::vector<PlannedRow> rows;  // in order of admission; empty only if there are no views
  int num_steps = 1;
};

// Plans runs; keeps its working memory between calls. Thread: one.
class Scheduler {
 public:
  // REQUIRES: max_rows, max_tokens, max_steps >= 1.
  Scheduler(const BackendLimits& limits, const ScheduleOptions& options);

  // Fills `plan` (its memory is reused). `run`: the number of this run, above every last_served.
  // `waiting`: requests wait for a slot.
  void PlanRun(std::span<const SequenceView> sequences, uint64_t run, bool waiting, RunPlan* plan);

 private:
  // It feeds one token in this run, whatever the budget is.
  bool FeedsOne(const SequenceView& view) const {
    return view.prefill_tokens == 0 || (view.forced && beside_free_);
  }
  // Fills share_: the budget in equal parts. Short prompts leave the unused rest of their parts to
  // longer prompts, so that nobody waits behind a long prompt (max-min fairness). With more prompts
  // than budget, the prompts served longest ago get one token each.
  void SharePrefill(std::span<const SequenceView> sequences, int64_t budget);
  void KeepLargestClaims(std::span<const SequenceView> sequences, uint64_t run, RunPlan* plan);

  const int max_rows_;  // also bounded by max_tokens: a row feeds at least one
  const int max_tokens_;
  const int long_run_;  // steps that hide the cost of a Submit
  const ScheduleOptions options_;
  bool beside_free_ = false;        // a reply without a constraint decodes
  std::vector<int64_t> share_;      // [sequences]
  std::vector<size_t> prefilling_;  // working memory of SharePrefill
  struct Claim {
    uint64_t turn;   // number of rows of its tenant with larger claims
    uint64_t claim;  // of the row; with several tenants, replaced by the claim of its tenant
    PlannedRow row;
  };
  struct TenantRows {
    uint64_t rows = 0;
    uint64_t last_served = 0;
  };
  std::vector<Claim> claims_;                          // working memory of KeepLargestClaims
  absl::flat_hash_map<uint64_t, TenantRows> tenants_;  // likewise
};

}  // namespace rivulet
