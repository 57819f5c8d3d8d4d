// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/simulation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rivulet {

void Simulation::Broken(const std::string& what) {
  Note([&] { return absl::StrCat("BROKEN: ", what); });
  if (broken_.empty()) broken_ = what;
}

void Simulation::Note(absl::FunctionRef<std::string()> what) {
  if (!options_.trace) return;
  trace_.push_back(absl::StrCat("turn ", turn_, " +",
                                absl::ToInt64Milliseconds(now_ - absl::FromUnixSeconds(1'000'000)),
                                "ms ", what()));
}

int64_t Simulation::Counted(const std::string& what) const {
  const auto found = counts_.find(what);
  return found == counts_.end() ? 0 : found->second;
}

std::string Simulation::Run() {
  Note([&] {
    const BackendLimits& limits = world_.fake.limits;
    return absl::StrCat(
        "slots ", limits.num_slots, ", rows ", limits.max_rows, ", steps ", limits.preferred_steps,
        "/", limits.max_steps, ", queue ", world_.options.max_queue, ", pending ",
        world_.options.max_pending_bytes, ", sessions ", world_.options.sessions.max_open_sessions,
        ", state bytes ", world_.options.states.max_memory_bytes, ", waiting ",
        world_.options.sessions.max_waiting, ", fails at call ", world_.fake.fail_at_call);
  });
  while (actions_ < options_.max_actions && choices_.more() && broken_.empty()) Act();
  if (broken_.empty()) FinishAll();
  Stop();
  if (!asked_.empty()) Broken(absl::StrCat("I8: ", asked_.front().what, " never ended"));
  if (disk_ && disk_->reads() > 0) counts_["disk read"] = disk_->reads();
  if (disk_ && disk_->faults() > 0) counts_["disk fault"] = disk_->faults();
  if (!BackendFailed() && probe_->dirty_slots() > 0) Broken("I10: a slot was left dirty");
  for (const std::string& violation : probe_->violations()) Broken("backend: " + violation);
  if (broken_.empty()) JudgeEnds();
  return broken_;
}

// What only all ends together tell.
void Simulation::JudgeEnds() {
  const std::string unexplained = shared_.Unexplained();
  if (!unexplained.empty()) Broken(unexplained);
  const bool preempted = Counted("preempted") > 0;
  const std::string unfair =
      clock_went_back_ ? "" : turns_.Unfair(preempted, world_.room_for_all());
  if (!unfair.empty()) Broken("fair shares: " + unfair);
}

void Simulation::Stop() {
  Note([] { return "the engine goes"; });
  stopping_ = true;
  BeginTurn();
  engine_.reset();
}

void Simulation::Act() {
  ++actions_;
  const int kind = choices_.Below(100);
  if (kind < 40) {
    Turn(/*emit=*/!choices_.OneIn(5));
  } else if (kind < 44) {
    if (!slow_disk_ || choices_.OneIn(8)) WorkOnDisk(choices_.Between(1, 4));
  } else if (kind < 82) {
    Ask();
  } else if (kind < 88) {
    CancelSomething();
  } else if (kind < 93) {
    Read();
  } else if (kind < 98) {
    MoveClock();
  } else if (kind < 99) {
    Emit();
  } else if (choices_.OneIn(20)) {
    Note([] { return "drain begins"; });
    draining_ = true;
    engine_->Drain(absl::InfiniteFuture());
  }
}

bool Simulation::WorkOnDisk(int pieces) {
  int done = 0;
  while (disk_ && done < pieces && disk_->DoOne()) ++done;
  return done > 0;
}

void Simulation::MoveClock() {
  const absl::Time before = now_;
  const int kind = choices_.Below(100);
  if (kind == 0) {
    now_ += absl::Hours(1);
  } else if (kind == 1 && choices_.OneIn(2)) {
    now_ -= absl::Hours(1);
  } else if (kind < 20) {
    now_ += absl::Seconds(choices_.Between(1, 20));
  } else {
    now_ += absl::Milliseconds(choices_.Between(1, 900));
  }
  clock_went_back_ |= now_ < before;
  Note([] { return "clock moved"; });
}

// Other threads do something while the loop is inside a call of the backend.
void Simulation::OnBackendCall() {
  if (stopping_ || quiet_ || !broken_.empty() || !choices_.OneIn(12)) return;
  Note([] { return "(while the backend works)"; });
  switch (choices_.Below(9)) {
    case 0:
    case 1:
      return Emit();
    case 8:
      WorkOnDisk(1);
      return;
    case 2:
      return MoveClock();
    case 3:
      return Read();
    case 4:
    case 5:
      return CancelSomething();
    default:
      return Ask();
  }
}

bool Simulation::BackendFailed() const {
  return world_.fake.fail_at_call >= 0 && probe_->calls() > world_.fake.fail_at_call;
}

void Simulation::BeginTurn() {
  ++turn_;
  now_ += absl::Microseconds(1);  // so that what happened in different turns has different times
  if (BackendFailed() && !failed_at_turn_) failed_at_turn_ = turn_;
  latest_ = std::max(latest_, now_);
  turn_clocks_.push_back(now_);
  turn_runs_.push_back(probe_->num_runs());
  ExpireClients();
}

void Simulation::Turn(bool emit) {
  BeginTurn();
  int64_t holders =
      std::count_if(asked_.begin(), asked_.end(), [](const Asked& asked) { return asked.goes_on; });
  const int asked_before = last_number_;
  const bool more = engine_->Turn();
  holders += last_number_ - asked_before;
  if (!emit) return;
  Emit();
  told_turn_ = turn_;
  if (broken_.empty()) CheckAfterTurn();
  if (broken_.empty()) CheckLoad(/*idle=*/!more, holders);
}

void Simulation::Emit() { engine_->Emit(); }

bool Simulation::MayHaveExpired(const Client& client) const {
  return clock_went_back_ || latest_ >= client.used_low + client.idle;
}

// Those that the turn that begins now must find idle for too long.
void Simulation::ExpireClients() {
  if (clock_went_back_) return;
  for (Client& client : clients_) {
    if (client.gone || now_ < client.used_high + client.idle) continue;
    const bool used = std::any_of(asked_.begin(), asked_.end(), [&](const Asked& asked) {
      return asked.client == &client && !asked.foreign && asked.turn < turn_ - 1;
    });
    if (used) continue;
    client.gone = true;
    client.gone_turn = turn_;
    Count("expired");
    Note([&] { return absl::StrCat("session ", client.number, " expires"); });
  }
}

// Everybody reads, nobody disturbs: what is left must end by itself.
void Simulation::FinishAll() {
  const int how = choices_.Below(4);
  if (how == 0) return;  // the engine goes in the middle
  if (how == 1) {
    Note([] { return "drain begins"; });
    draining_ = true;
    engine_->Drain(absl::InfiniteFuture());
  }
  if (how == 2 && choices_.OneIn(3)) {
    Note([] { return "drain ends the rest"; });
    draining_ = ended_rest_ = true;
    engine_->Drain(absl::InfinitePast());
  }
  quiet_ = true;
  const bool close_all = choices_.OneIn(2) && !ended_rest_;
  for (int turns = 0, idle = 0; idle < 3 && broken_.empty(); ++turns) {
    for (Asked& asked : asked_) ReadOf(&asked);
    const bool worked = WorkOnDisk(1000);
    if (close_all && asked_.empty() && !BackendFailed()) CloseAll();
    const size_t before = asked_.size();
    const int64_t runs = probe_->num_runs();
    Turn(/*emit=*/true);
    const bool busy = worked || asked_.size() != before || probe_->num_runs() != runs;
    idle = busy ? 0 : idle + 1;
    if (turns > 20000) Broken("I8: no end in sight");
  }
  if (!broken_.empty()) return;
  if (!asked_.empty()) {
    Broken(absl::StrCat("I8: ", asked_.front().what, " hangs although nothing stops it"));
  }
  CheckRest();
  if (draining_ && !engine_->Drain(absl::InfiniteFuture())) Broken("I8: drained, and not empty");
}

}  // namespace rivulet
