// SPDX-License-Identifier: Apache-2.0
// One run of the loop: plan, submit, records.
#include <chrono>
#include <thread>
#include <utility>

#include "model/base/error.h"
#include "server/engine/activity.h"
#include "server/engine/loop.h"

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
  for (Session* session : running_) {
    if (!session->runnable() || session->request->paused_since) continue;
    SessionView view = session->View();
    view.single_step |= session->request->deadline < near_deadline;
    view.priority = session->request->priority;
    view.tenant = session->request->tenant_key;
    runnable_.push_back(session);
    views_.push_back(view);
  }
}

void Loop::BuildRun() {
  size_t total = 0;
  for (const PlannedRow& planned : plan_.rows) total += static_cast<size_t>(planned.tokens);
  tokens_.clear();
  tokens_.reserve(total);
  row_sessions_.clear();
  run_.num_steps = plan_.num_steps;
  run_.rows.assign(plan_.rows.size(), RunRow());
  for (size_t i = 0; i < plan_.rows.size(); ++i) {
    const PlannedRow& planned = plan_.rows[i];
    Session* session = runnable_[static_cast<size_t>(planned.session)];
    session->row = static_cast<int>(i);
    session->last_served = run_number_;
    row_sessions_.push_back(session);
    session->FillRow(planned.tokens, plan_.num_steps, &tokens_, &run_.rows[i]);
    const bool given = views_[static_cast<size_t>(planned.session)].prefill_tokens > 0;
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
    Session* session = row_sessions_[row];
    if (session == nullptr) continue;
    session->OnRecord(&record);
    if (session->touched) continue;
    session->touched = true;
    touched_.push_back(session);
  }
  for (Session* session : touched_) Flush(session);
  ForgetEnded();
}

void Loop::Flush(Session* session) {
  session->touched = false;
  if (session->ended) return;  // with its request, by a sibling
  Request* request = session->request;
  if (!request->first_token) request->first_token = now_;
  if (session->Flush()) {
    if (request->MarkReady()) batch_.ready.push_back(request);
    NotePause(request);
  }
  if (session->finished) EndSession(session);
}

absl::Status Loop::AfterRun() {
  for (size_t i = 0; i < row_sessions_.size(); ++i) {
    Session* session = row_sessions_[i];
    if (session == nullptr) continue;
    RIVULET_RETURN_IF_ERROR(KeepState(session));
    const Session::Next next = session->OnRunDone();
    session->row = -1;
    row_sessions_[i] = nullptr;
    if (session->finished) {
      EndSession(session);
    } else if (next == Session::Next::kFork) {
      RIVULET_RETURN_IF_ERROR(Fork(session));
    } else if (next == Session::Next::kZero) {
      to_zero_.push_back(session->slot);
    }
  }
  ForgetEnded();
  return TakeBackSlots();
}

absl::Status Loop::Fork(Session* first) {
  for (auto& session : first->request->sessions) {
    if (session.get() != first) {
      RIVULET_RETURN_IF_ERROR(backend_->CopySlot(first->slot, session->slot));
    }
    session->OnForked();
  }
  return absl::OkStatus();
}

}  // namespace rivulet
