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

std::string Simulation::Run() {
  Note([&] {
    const BackendLimits& limits = world_.fake.limits;
    return absl::StrCat(
        "slots ", limits.num_slots, ", rows ", limits.max_rows, ", steps ", limits.preferred_steps,
        "/", limits.max_steps, ", queue ", world_.options.max_queue, ", pending ",
        world_.options.max_pending_bytes, ", sessions ", world_.options.sessions.max_sessions,
        ", state bytes ", world_.options.states.max_memory_bytes, ", waiting ",
        world_.options.sessions.max_waiting, ", fails at call ", world_.fake.fail_at_call);
  });
  while (actions_ < options_.max_actions && choices_.more() && broken_.empty()) Act();
  if (broken_.empty()) FinishAll();
  Stop();
  if (!asked_.empty()) Broken(absl::StrCat("I8: ", asked_.front().what, " never ended"));
  if (!BackendFailed() && probe_->dirty_slots() > 0) Broken("I10: a slot was left dirty");
  for (const std::string& violation : probe_->violations()) Broken("backend: " + violation);
  return broken_;
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
  switch (choices_.Below(8)) {
    case 0:
    case 1:
      return Emit();
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
  if (BackendFailed() && !failed_at_turn_) failed_at_turn_ = turn_;
  latest_ = std::max(latest_, now_);
  turn_clocks_.push_back(now_);
  ExpireClients();
}

void Simulation::Turn(bool emit) {
  BeginTurn();
  const bool more = engine_->Turn();
  if (!emit) return;
  Emit();
  told_turn_ = turn_;
  if (broken_.empty()) CheckAfterTurn();
  if (broken_.empty()) CheckLoad(/*idle=*/!more);
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

// Whoever must have ended by now has ended; whoever waits, waits within the limits.
void Simulation::CheckAsked(const Asked& asked) {
  if (asked.turn >= turn_ - 1) return;
  const char* over = nullptr;
  if (BackendFailed()) {  // which delays the ends of this turn to the next one
    if (failed_at_turn_ && *failed_at_turn_ < turn_ - 1) over = "the backend's failure";
  } else if (asked.cancelled && *asked.cancelled < turn_ - 1) {
    over = "its cancel";
  } else if (!clock_went_back_ && latest_ >= asked.deadline) {
    over = "its deadline";
  }
  if (over != nullptr) Broken(absl::StrCat("I8: ", asked.what, " goes on after ", over));
  if (asked.reply == nullptr) return;
  const int64_t burst = world_.fake.limits.max_steps + 2;
  constexpr int64_t kTokenBytes = 4 + 1 + 4;  // the id, a character, a logprob
  const int64_t most = world_.options.max_pending_bytes + burst * asked.places * kTokenBytes;
  if (asked.reply->pending_bytes() > most) {
    Broken(
        absl::StrCat("I6: ", asked.what, " has ", asked.reply->pending_bytes(), " pending bytes"));
  }
}

void Simulation::CheckAfterTurn() {
  std::map<const Client*, int> waiting;
  for (const Asked& asked : asked_) {
    CheckAsked(asked);
    if (asked.client != nullptr && !asked.foreign && !asked.closes && asked.turn < turn_ - 1) {
      ++waiting[asked.client];
    }
  }
  for (const auto& [client, count] : waiting) {
    if (count > world_.options.sessions.max_waiting + 1) {
      Broken(absl::StrCat("I6: ", count, " requests on session ", client->number));
    }
  }
  for (const std::string& violation : probe_->violations()) Broken("backend: " + violation);
}

void Simulation::CheckLoad(bool idle) {
  const EngineLoad load = engine_->GetLoad();
  int places = 0, on_sessions = 0;
  for (const Asked& asked : asked_) {
    places += asked.places;
    on_sessions += asked.client != nullptr ? 1 : 0;
  }
  if (load.queued + load.running > load.slots + load.max_queue) Broken("I6: the queue");
  if (load.queued + load.running != places) {
    Broken(absl::StrCat("I9: ", load.queued, " queued + ", load.running, " running, ", places,
                        " asked for"));
  }
  const int64_t held = on_sessions * static_cast<int64_t>(world_.fake.limits.bytes_per_slot);
  if (load.states.memory_bytes > world_.options.states.max_memory_bytes + held) {
    Broken(absl::StrCat("I6: states of ", load.states.memory_bytes, " bytes"));
  }
  int least = 0, most = 0;
  for (const Client& client : clients_) {
    if (client.gone) continue;
    ++most;
    if (!client.closing && !MayHaveExpired(client)) ++least;
  }
  if (load.client_sessions < least || load.client_sessions > most) {
    Broken(absl::StrCat("I9: ", load.client_sessions,
                        " sessions are open; opened less closed and expired: ", least, " to ",
                        most));
  }
  if (idle && !BackendFailed() && probe_->dirty_slots() > load.slots_used) {
    Broken(
        absl::StrCat("I10: ", probe_->dirty_slots(), " dirty slots, ", load.slots_used, " used"));
  }
  if (load.tokens_total < tokens_seen_) Broken("I9: more tokens were seen than drawn");
  if (!load.health.ok() && !BackendFailed()) Broken("I7: health says that the backend failed");
  if (load.health.ok() && failed_at_turn_ && *failed_at_turn_ < turn_) {
    Broken("I7: the backend failed and health does not say so");
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
  for (int turns = 0, idle = 0; idle < 3 && broken_.empty(); ++turns) {
    for (Asked& asked : asked_) ReadOf(&asked);
    const size_t before = asked_.size();
    const int64_t runs = probe_->num_runs();
    Turn(/*emit=*/true);
    idle = asked_.size() == before && probe_->num_runs() == runs ? idle + 1 : 0;
    if (turns > 20000) Broken("I8: no end in sight");
  }
  if (!broken_.empty()) return;
  if (!asked_.empty()) {
    Broken(absl::StrCat("I8: ", asked_.front().what, " hangs although nothing stops it"));
  }
  const EngineLoad load = engine_->GetLoad();
  if (load.slots_used != 0 || load.running != 0 || load.queued != 0) {
    Broken(absl::StrCat("I9: ", load.slots_used, " slots used at rest"));
  }
  if (!BackendFailed() && probe_->dirty_slots() != 0) Broken("I10: dirty slots at rest");
  if (draining_ && !engine_->Drain(absl::InfiniteFuture())) Broken("I8: drained, and not empty");
}

}  // namespace rivulet
