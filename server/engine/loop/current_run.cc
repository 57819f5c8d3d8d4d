// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/current_run.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "server/engine/loop/activity.h"
#include "server/engine/sequences/live_request.h"

namespace rivulet {
namespace {

// A request this close to its deadline is checked after each step.
constexpr absl::Duration kNearDeadline = absl::Milliseconds(100);
// How often an unfinished run is polled without sleeping, and the length of a sleep. The spin is
// bounded, because an unbounded spin starves another thread on the same core.
constexpr int kPollsBeforeSleep = 200;
constexpr std::chrono::microseconds kPollSleep(20);

}  // namespace

CurrentRun::CurrentRun(Backend* backend, const ScheduleOptions& options)
    : backend_(backend), scheduler_(backend->limits(), options) {}

bool CurrentRun::Plan(std::span<Sequence* const> holders, absl::Time now, bool waiting) {
  NotePhase(LoopPhase::kPlan);
  Collect(holders, now);
  if (runnable_.empty()) return false;
  ++number_;
  scheduler_.PlanRun(views_, number_, waiting, &plan_);
  PlanDrafts();
  FillRows();
  return true;
}

void CurrentRun::Collect(std::span<Sequence* const> holders, absl::Time now) {
  runnable_.clear();
  views_.clear();
  const absl::Time near_deadline = now + kNearDeadline;
  for (Sequence* sequence : holders) {
    // A paused one that has outputs to draw from draws, or its slot could not be taken.
    const bool paused = sequence->request->life.paused() && !sequence->keeps_slot();
    if (!sequence->runnable() || paused) continue;
    SequenceView view = sequence->View();
    view.single_step |= sequence->request->times.deadline < near_deadline;
    view.priority = sequence->request->account.priority;
    view.tenant = sequence->request->account.tenant_number;
    runnable_.push_back(sequence);
    views_.push_back(view);
  }
}

void CurrentRun::PlanDrafts() {
  draft_views_.clear();
  for (const PlannedRow& planned : plan_.rows) {
    const SequenceView& view = views_[static_cast<size_t>(planned.sequence)];
    if (view.prefill_tokens > 0) break;
    draft_views_.push_back(view.drafts);
  }
  if (plan_.num_steps > 1 || draft_views_.size() < plan_.rows.size()) draft_views_.clear();
  rivulet::PlanDrafts(draft_views_, costs_, backend_->limits(), number_, &drafts_);
  drafts_.resize(plan_.rows.size());
}

int CurrentRun::PlanGuesses() const {
  if (draft_views_.size() != 1) return 0;
  return rivulet::PlanGuesses(draft_views_[0], costs_, 1 + drafts_[0],
                              backend_->limits().drafts.guesses, number_);
}

void CurrentRun::FillRows() {
  size_t total = 0;
  for (size_t i = 0; i < plan_.rows.size(); ++i) {
    total += static_cast<size_t>(plan_.rows[i].tokens + drafts_[i]);
  }
  tokens_.clear();
  tokens_.reserve(total);
  row_sequences_.clear();
  next_done_ = 0;
  fed_ = drafted_ = 0;
  run_.num_steps = plan_.num_steps;
  run_.rows.assign(plan_.rows.size(), RunRow());
  for (size_t i = 0; i < plan_.rows.size(); ++i) {
    const PlannedRow& planned = plan_.rows[i];
    Sequence* sequence = runnable_[static_cast<size_t>(planned.sequence)];
    sequence->row = static_cast<int>(i);
    sequence->last_served = number_;
    row_sequences_.push_back(sequence);
    sequence->FillRow(
        {planned.tokens, drafts_[i], PlanGuesses(), plan_.num_steps, plan_.rows.size() <= kFewRows},
        &tokens_, &run_.rows[i]);
    const bool given = views_[static_cast<size_t>(planned.sequence)].prefill_tokens > 0;
    if (given) fed_ += planned.tokens;
    drafted_ += run_.rows[i].drafts;
  }
}

absl::Status CurrentRun::Submit() {
  NoteRun(static_cast<int>(run_.rows.size()), run_.num_steps);
  NotePhase(LoopPhase::kSubmit);
  idle_polls_ = 0;
  return backend_->Submit(run_);
}

absl::StatusOr<bool> CurrentRun::Poll() {
  NotePhase(LoopPhase::kPoll);
  records_.clear();
  return backend_->Poll(&records_);
}

std::span<Sequence* const> CurrentRun::GiveRecords() {
  NotePhase(LoopPhase::kRecords);
  idle_polls_ = 0;
  sampled_ = accepted_ = 0;
  given_.clear();
  for (Record& record : records_) {
    const size_t row = static_cast<size_t>(record.row);
    if (run_.rows[row].sample && !record.late) ++sampled_;
    // Behind the first draw, each one follows a right draft.
    if (run_.rows[row].drafts > 0 && record.position > run_.rows[row].position + 1) ++accepted_;
    Sequence* sequence = row_sequences_[row];
    if (sequence == nullptr) continue;
    sequence->OnRecord(&record);
    if (std::exchange(sequence->got_records, true)) continue;
    given_.push_back(sequence);
  }
  for (Sequence* sequence : given_) sequence->got_records = false;
  return given_;
}

void CurrentRun::NoteTime(absl::Duration time) {
  if (draft_views_.empty()) return;
  const auto fed = static_cast<int>(tokens_.size());
  const double seconds = absl::ToDoubleSeconds(time);
  const int guesses = run_.rows[0].guesses;
  if (guesses == 0) return costs_.Note(fed, seconds);
  const std::optional<double> pass = costs_.At(fed);
  if (pass) costs_.NoteGuess(std::max(0.0, seconds - *pass) / guesses);
}

void CurrentRun::BackOff() {
  if (++idle_polls_ < kPollsBeforeSleep) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(kPollSleep);
  }
}

void CurrentRun::Drop(Sequence* sequence) {
  if (sequence->row < 0) return;
  row_sequences_[static_cast<size_t>(std::exchange(sequence->row, -1))] = nullptr;
}

Sequence* CurrentRun::TakeDone() {
  while (next_done_ < row_sequences_.size()) {
    Sequence* const sequence = std::exchange(row_sequences_[next_done_++], nullptr);
    if (sequence == nullptr) continue;
    sequence->row = -1;
    return sequence;
  }
  return nullptr;
}

}  // namespace rivulet
