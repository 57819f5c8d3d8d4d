// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/simulation.h"

#include <algorithm>
#include <utility>

#include "absl/time/time.h"

namespace rivulet {

Simulation::Simulation(Choices choices, const SimulationOptions& options)
    : choices_(std::move(choices)),
      options_(options),
      world_(DrawWorld(&choices_)),
      journal_(clock_, options.trace),
      engine_(world_, clock_, &choices_, options.mutant, [this] { OnBackendCall(); }),
      requests_(clock_),
      clients_(clock_, &journal_),
      status_(clock_, engine_, requests_, &clients_, &journal_),
      results_(world_, clock_, &status_, &requests_, &clients_, &journal_),
      sessions_(world_, &status_, &requests_, &clients_, &journal_),
      checks_(clock_, engine_, clients_, &requests_, &journal_),
      actions_(&choices_, clock_, &engine_, &requests_, &clients_,
               {&status_, &results_, &sessions_}, &journal_) {}

Simulation::~Simulation() {
  if (engine_.get() != nullptr) Stop();  // its requests tell us of their ends
}

std::string Simulation::Run() {
  const BackendLimits& limits = world_.fake.limits;
  const EngineOptions& options = world_.options;
  journal_.Note("slots ", limits.num_slots, ", rows ", limits.max_rows, ", steps ",
                limits.preferred_steps, "/", limits.max_steps, ", queue ", options.max_queue,
                ", pending ", options.max_pending_bytes, ", sessions ",
                options.sessions.max_open_sessions, ", state bytes ",
                options.states.max_memory_bytes, ", waiting ", options.sessions.max_waiting,
                ", fails at call ", world_.fake.fail_at_call);
  for (int i = 0; i < options_.max_actions && choices_.more() && journal_.ok(); ++i) Act();
  if (journal_.ok()) Finish();
  Stop();
  if (!requests_.empty()) {
    journal_.Broken("I8: ", requests_.begin()->what, " never ended");
  }
  if (engine_.disk() != nullptr) {
    journal_.SetCount("disk read", engine_.disk()->reads());
    journal_.SetCount("disk fault", engine_.disk()->faults());
  }
  const FakeProbe& probe = engine_.probe();
  if (!engine_.BackendFailed() && probe.dirty_slots() > 0) {
    journal_.Broken("I10: a slot was left dirty");
  }
  for (const std::string& violation : probe.violations()) journal_.Broken("backend: ", violation);
  if (journal_.ok()) results_.AllEnded();
  return journal_.broken();
}

void Simulation::Act() {
  const int kind = choices_.Below(100);
  if (kind < 40) {
    Turn(/*emit=*/!choices_.OneIn(5));
  } else if (kind < 44) {
    const bool slow = world_.disk && world_.disk->slow;
    if (!slow || choices_.OneIn(8)) engine_.WorkOnDisk(choices_.Between(1, 4));
  } else if (kind < 82) {
    actions_.Ask();
  } else if (kind < 88) {
    actions_.CancelSomething();
  } else if (kind < 93) {
    actions_.Read();
  } else if (kind < 98) {
    MoveClock();
  } else if (kind < 99) {
    engine_.get()->Emit();
  } else if (choices_.OneIn(20)) {
    Drain(/*end_rest=*/false);
  }
}

void Simulation::Drain(bool end_rest) {
  journal_.Note(end_rest ? "drain ends the rest" : "drain begins");
  engine_.Drain(end_rest ? absl::InfinitePast() : absl::InfiniteFuture());
}

void Simulation::MoveClock() {
  const int kind = choices_.Below(100);
  if (kind == 0) {
    clock_.Move(absl::Hours(1));
  } else if (kind == 1 && choices_.OneIn(2)) {
    clock_.Move(-absl::Hours(1));
  } else if (kind < 20) {
    clock_.Move(absl::Seconds(choices_.Between(1, 20)));
  } else {
    clock_.Move(absl::Milliseconds(choices_.Between(1, 900)));
  }
  journal_.Note("clock moved");
}

// Other threads do something while the loop is inside a call of the backend.
void Simulation::OnBackendCall() {
  if (engine_.stopping() || quiet_ || !journal_.ok() || !choices_.OneIn(12)) return;
  journal_.Note("(while the backend works)");
  switch (choices_.Below(9)) {
    case 0:
    case 1:
      return engine_.get()->Emit();
    case 8:
      engine_.WorkOnDisk(1);
      return;
    case 2:
      return MoveClock();
    case 3:
      return actions_.Read();
    case 4:
    case 5:
      return actions_.CancelSomething();
    default:
      return actions_.Ask();
  }
}

void Simulation::BeginTurn() {
  clock_.BeginTurn(engine_.probe().num_runs());
  engine_.BeginTurn(clock_.turn());
  clients_.Expire(requests_);
}

void Simulation::Turn(bool emit) {
  BeginTurn();
  int64_t holders = std::count_if(requests_.begin(), requests_.end(),
                                  [](const simulated::Asked& asked) { return asked.goes_on; });
  const int asked_before = requests_.last_number();
  const auto reads_ended = [&] { return engine_.disk() ? engine_.disk()->reads_ended() : 0; };
  const int64_t ended_before = reads_ended();
  const bool more = engine_.get()->Turn();
  holders += requests_.last_number() - asked_before;
  holders += reads_ended() - ended_before;  // the next turn takes these states in
  if (!emit) return;
  engine_.get()->Emit();
  clock_.Told();
  checks_.AfterTurn(/*idle=*/!more, holders, results_.tokens_seen());
}

// Everybody reads, nobody disturbs: what is left must end by itself.
void Simulation::Finish() {
  const int how = choices_.Below(4);
  if (how == 0) return;  // the engine goes in the middle
  if (how == 1) Drain(/*end_rest=*/false);
  if (how == 2 && choices_.OneIn(3)) Drain(/*end_rest=*/true);
  quiet_ = true;
  const bool close_all = choices_.OneIn(2) && !engine_.ended_rest();
  // A constraint may be looked at in vain for some turns.
  for (int turns = 0, idle = 0; idle < 8 && journal_.ok(); ++turns) {
    actions_.ReadAll();
    const bool worked = engine_.WorkOnDisk(1000);
    if (close_all && requests_.empty() && !engine_.BackendFailed()) actions_.CloseAll();
    const size_t before = requests_.size();
    const int64_t runs = engine_.probe().num_runs();
    Turn(/*emit=*/true);
    const bool busy = worked || requests_.size() != before || engine_.probe().num_runs() != runs;
    idle = busy ? 0 : idle + 1;
    if (turns > 20000) journal_.Broken("I8: no end in sight");
  }
  if (!journal_.ok()) return;
  if (!requests_.empty()) {
    journal_.Broken("I8: ", requests_.begin()->what, " hangs although nothing stops it");
  }
  checks_.AtRest();
  if (engine_.draining() && !engine_.Drain(absl::InfiniteFuture())) {
    journal_.Broken("I8: drained, and not empty");
  }
}

void Simulation::Stop() {
  journal_.Note("the engine goes");
  BeginTurn();
  engine_.Stop();
}

}  // namespace rivulet
