// SPDX-License-Identifier: Apache-2.0
// Checks: the conditions that must hold after each turn and when nothing runs: limits, and no
// leaks.
#pragma once

#include <cstdint>

#include "tests/simulation/clients.h"
#include "tests/simulation/engine_under_test.h"

namespace rivulet::simulated {

// Thread: one.
class Checks {
 public:
  // All are borrowed.
  Checks(const TurnClock& clock, const EngineUnderTest& engine, const Clients& clients,
         Requests* requests, Journal* journal)
      : clock_(clock), engine_(engine), clients_(clients), requests_(requests), journal_(journal) {}

  // After a turn whose ends were delivered. `idle`: nothing could happen in the turn; `holders`:
  // number of requests that may have held a kept state when the engine noted its load;
  // `tokens_seen`: by all clients.
  void AfterTurn(bool idle, int64_t holders, int64_t tokens_seen);
  // When every request has ended, and the disk has no work left.
  void AtRest();

 private:
  void CheckRequests();
  // Checks that the request has ended, if it must have by now.
  void CheckEnd(const Asked& asked);
  // Checks that tokens that wait for a reader are within the limit, and do not wait for ever.
  void CheckReader(Asked* asked);
  void CheckLoad(bool idle, int64_t holders, int64_t tokens_seen);
  void CheckSessions(const EngineLoad& load);
  void CheckParked(const EngineLoad& load);
  void CheckStates(const EngineLoad& load, int64_t holders);

  const TurnClock& clock_;
  const EngineUnderTest& engine_;
  const World& world_{engine_.world()};
  const Clients& clients_;
  Requests* const requests_;
  Journal* const journal_;
};

}  // namespace rivulet::simulated
