// SPDX-License-Identifier: Apache-2.0
// Simulation: an engine, its clients, its clock and its faults on one thread. The schedule of
// events is drawn from Choices; after each turn all promises of the engine are checked. The same
// choices give the same schedule.
// Invariants (messages name them): I1 each reply is a prefix of the tokens that its session draws
// alone, complete if it ended well; I4 no result depends on other requests; I5 a failed request
// changed nothing; I6 queues, pending tokens, parked and kept states stay within their limits; I7 a
// failed backend is reported; I8 every request ends, and its error is in docs/api.md and has its
// documented cause; I9 sessions, places and slots are conserved; I10 free slots are zero, messages
// hold no pointer and no path.
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
  bool trace = false;  // keep notes of all events, to be printed
};

// Runs the schedule: chooses each next event. Thread: one.
class Simulation {
 public:
  Simulation(Choices choices, const SimulationOptions& options);
  ~Simulation();

  // Carries out the schedule. Returns the first broken promise; empty: all were kept.
  std::string Run();

  const std::vector<std::string>& trace() const { return journal_.trace(); }
  // Number of events by name.
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
  bool quiet_ = false;  // no more faults and cancellations
};

}  // namespace rivulet
