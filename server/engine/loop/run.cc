// SPDX-License-Identifier: Apache-2.0
// One run of the loop: plan, submit, records.
#include <chrono>
#include <thread>
#include <utility>

#include "model/base/error.h"
#include "server/engine/loop/activity.h"
#include "server/engine/loop/loop.h"

namespace rivulet {
namespace {

// A request this close to its deadline is looked at after each step.
constexpr absl::Duration kNearDeadline = absl::Milliseconds(100);
// How often an unfinished run is polled without sleeping, and how long a sleep is: a bounded spin,
// because an unbounded one starves a neighbour on the same core.
constexpr int kPollsBeforeSleep = 200;
constexpr std::chrono::microseconds kPollSleep(20);

}  // namespace

absl::StatusOr<bool> Loop::RunOnce() {
  NotePhase(LoopPhase::kPlan);
  CollectRunnable();
  if (runnable_.empty()) return false;
  ++run_number_;
  scheduler_.PlanRun(views_, run_number_, !admission_.empty(), &plan_);
  BuildRun();
  NoteRun(static_cast<int>(run_.rows.size()), run_.num_steps);
  NotePhase(LoopPhase::kSubmit);
  RIVULET_RETURN_IF_ERROR(backend_->Submit(run_));
  RIVULET_RETURN_IF_ERROR(PollUntilComplete());
  NotePhase(LoopPhase::kEnd);
  RIVULET_RETURN_IF_ERROR(AfterRun());
  return true;
}

void Loop::CollectRunnable() {
  runnable_.clear();
  views_.clear();
  const absl::Time near_deadline = now_ + kNearDeadline;
  for (Sequence* sequence : slots_.holders()) {
    if (!sequence->runnable() || sequence->request->paused_since) continue;
    SequenceView view = sequence->View();
    view.single_step |= sequence->request->deadline < near_deadline;
    view.priority = sequence->request->priority;
    view.tenant = sequence->request->tenant_key;
    runnable_.push_back(sequence);
    views_.push_back(view);
  }
}

void Loop::BuildRun() {
  size_t total = 0;
  for (const PlannedRow& planned : plan_.rows) total += static_cast<size_t>(planned.tokens);
  tokens_.clear();
  tokens_.reserve(total);
  row_sequences_.clear();
  run_.num_steps = plan_.num_steps;
  run_.rows.assign(plan_.rows.size(), RunRow());
  for (size_t i = 0; i < plan_.rows.size(); ++i) {
    const PlannedRow& planned = plan_.rows[i];
    Sequence* sequence = runnable_[static_cast<size_t>(planned.sequence)];
    sequence->row = static_cast<int>(i);
    sequence->last_served = run_number_;
    row_sequences_.push_back(sequence);
    sequence->FillRow(planned.tokens, plan_.num_steps, &tokens_, &run_.rows[i]);
    const bool given = views_[static_cast<size_t>(planned.sequence)].prefill_tokens > 0;
    if (given) progress_.fed += planned.tokens;
  }
}

absl::Status Loop::PollUntilComplete() {
  for (int idle_polls = 0;;) {
    NotePhase(LoopPhase::kPoll);
    records_.clear();
    absl::StatusOr<bool> complete = backend_->Poll(&records_);
    RIVULET_RETURN_IF_ERROR(complete.status());
    if (!records_.empty()) {
      HandleRecords();
      idle_polls = 0;
    }
    if (*complete) return absl::OkStatus();
    emitter_->Hand(&batch_);
    if (++idle_polls < kPollsBeforeSleep) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPollSleep);
    }
  }
}

void Loop::HandleRecords() {
  NotePhase(LoopPhase::kRecords);
  now_ = clock_();
  touched_.clear();
  for (Record& record : records_) {
    const size_t row = static_cast<size_t>(record.row);
    if (run_.rows[row].sample) ++progress_.sampled;
    Sequence* sequence = row_sequences_[row];
    if (sequence == nullptr) continue;
    sequence->OnRecord(&record);
    if (sequence->touched) continue;
    sequence->touched = true;
    touched_.push_back(sequence);
  }
  for (Sequence* sequence : touched_) Flush(sequence);
  slots_.ForgetEnded();
}

void Loop::Flush(Sequence* sequence) {
  sequence->touched = false;
  if (sequence->ended) return;  // with its request, by a sibling
  Request* request = sequence->request;
  if (!request->first_token) request->first_token = now_;
  if (sequence->Flush()) {
    if (request->MarkReady()) batch_.ready.push_back(request);
    NotePause(request);
  }
  if (sequence->finished) EndSequence(sequence);
}

absl::Status Loop::AfterRun() {
  for (size_t i = 0; i < row_sequences_.size(); ++i) {
    Sequence* sequence = row_sequences_[i];
    if (sequence == nullptr) continue;
    RIVULET_RETURN_IF_ERROR(KeepState(sequence));
    const Sequence::Next next = sequence->OnRunDone();
    sequence->row = -1;
    row_sequences_[i] = nullptr;
    if (sequence->finished) {
      EndSequence(sequence);
    } else if (next == Sequence::Next::kFork) {
      RIVULET_RETURN_IF_ERROR(slots_.Fork(*sequence));
      for (auto& forked : sequence->request->sequences) forked->OnForked();
    } else if (next == Sequence::Next::kZero) {
      slots_.ZeroSoon(*sequence);
    }
  }
  slots_.ForgetEnded();
  return TakeBackSlots();
}

}  // namespace rivulet
