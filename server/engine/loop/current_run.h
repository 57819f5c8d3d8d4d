// SPDX-License-Identifier: Apache-2.0
// CurrentRun: the run of the backend that is being planned or is running.
//
//   Plan ── Submit ── Poll, GiveRecords (repeated) ── TakeDone (once per row)
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "model/backend.h"
#include "server/engine/policy/scheduler.h"
#include "server/engine/sequences/sequence.h"

namespace rivulet {

// Thread: the loop. Sequences are borrowed: a sequence that ends before its row is taken must be
// dropped. Errors are those of the backend.
class CurrentRun {
 public:
  // `backend` is borrowed and outlives it.
  CurrentRun(Backend* backend, const ScheduleOptions& options);

  // The number of the last planned run; 0: none yet.
  uint64_t number() const { return number_; }

  // Plans rows for the `holders` (in order of admission) that have something to feed and whose
  // replies are read. False: no holder does. `waiting`: requests wait for slots.
  bool Plan(std::span<Sequence* const> holders, absl::Time now, bool waiting);
  // Prompt and scored tokens that the planned run feeds.
  int64_t fed() const { return fed_; }
  // Rows of the planned run.
  int rows() const { return static_cast<int>(run_.rows.size()); }

  absl::Status Submit();
  // Fetches the records that have arrived. True: the run is complete.
  absl::StatusOr<bool> Poll();
  // The run is complete, and took so long.
  void NoteTime(absl::Duration time);
  bool has_records() const { return !records_.empty(); }
  // Gives each sequence the records that the last Poll fetched for it. Returns the sequences that
  // got records, in the order of their first record; valid until the next call.
  std::span<Sequence* const> GiveRecords();
  // The number of sampled tokens that the last GiveRecords handled.
  int64_t sampled() const { return sampled_; }
  // Drafts of the run, and right ones among them, as the last GiveRecords found.
  int64_t drafted() const { return drafted_; }
  int64_t accepted() const { return accepted_; }
  // Waits a little before the next Poll, and longer after many Polls without records.
  void BackOff();

  // `sequence` has ended: it gets no more records, and TakeDone leaves out its row.
  void Drop(Sequence* sequence);
  // After the run is complete: removes the next row, in row order, from the run and returns its
  // sequence; null: no row is left.
  Sequence* TakeDone();

 private:
  void Collect(std::span<Sequence* const> holders, absl::Time now);
  void PlanDrafts();
  // Of the row, if it is alone.
  int PlanGuesses() const;
  void FillRows();

  Backend* const backend_;
  Scheduler scheduler_;
  uint64_t number_ = 0;
  std::vector<Sequence*> runnable_;
  std::vector<SequenceView> views_;  // of runnable_
  RunPlan plan_;
  // Of the planned rows, where every row decodes and the run has one step.
  std::vector<DraftView> draft_views_;
  std::vector<int> drafts_;
  PassCosts costs_;
  Run run_;
  TokenBuffer tokens_;                    // what run_.rows point into
  std::vector<Sequence*> row_sequences_;  // [rows]; null once ended or taken
  size_t next_done_ = 0;                  // row
  std::vector<Record> records_;
  std::vector<Sequence*> given_;  // that got records
  int idle_polls_ = 0;
  int64_t fed_ = 0, sampled_ = 0, drafted_ = 0, accepted_ = 0;
};

}  // namespace rivulet
