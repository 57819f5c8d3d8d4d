// SPDX-License-Identifier: Apache-2.0
// Simulation: an engine, its clients, its clock and its faults on one thread, a schedule of what
// happens drawn from Choices, and after each turn a look at everything that the engine promises.
// The same choices give the same schedule.
//
// Invariants (messages name them): I1 each reply is a prefix of what its session draws alone,
// complete if it ended well; I4 nothing depends on anybody else; I5 what failed changed nothing; I6
// queues, pending tokens, parked and kept states stay within their limits; I7 a failed backend is
// said to have failed; I8 every request ends, and its error is one of those in docs/api.md for a
// cause that there was; I9 sessions, places and slots are conserved; I10 free slots are zero,
// messages hold no pointer and no path.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/simulation/actions.h"
#include "tests/simulation/checks.h"

namespace rivulet {

struct SimulationOptions {
  Mutant mutant = Mutant::kNone;
  int max_actions = 500;
  bool trace = false;  // keep what happened, to be printed
};

// Time: what happens next. Thread: one.
class Simulation {
 public:
  Simulation(Choices choices, const SimulationOptions& options);
  ~Simulation();

  // Carries out the schedule. Returns the first broken promise; empty: all were kept.
  std::string Run();

  const std::vector<std::string>& trace() const { return journal_.trace(); }
  // By what happened.
  const std::map<std::string, int64_t>& counts() const { return journal_.counts(); }

 private:
  void Act();
  void BeginTurn();
  void Turn(bool emit);
  void MoveClock();
  void Drain(bool end_rest);
  void OnBackendCall();
  void Finish();
  void Stop();

  Choices choices_;
  const SimulationOptions options_;
  const World world_;
  simulated::TurnClock clock_;
  simulated::Journal journal_;
  simulated::EngineUnderTest engine_;
  simulated::Requests requests_;
  simulated::Clients clients_;
  simulated::StatusJudge status_;
  simulated::ResultJudge results_;
  simulated::SessionJudge sessions_;
  simulated::Checks checks_;
  simulated::Actions actions_;
  bool quiet_ = false;  // nobody disturbs any more
};

}  // namespace rivulet
