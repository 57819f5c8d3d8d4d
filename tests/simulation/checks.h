// SPDX-License-Identifier: Apache-2.0
// Checks: what must hold after each turn, and when nothing runs: limits, and that nothing is
// leaked.
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

  // After a turn whose ends were told. `idle`: nothing could happen in it; `holders`: requests that
  // may have held a kept state when the engine noted its load; `tokens_seen`: by all clients.
  void AfterTurn(bool idle, int64_t holders, int64_t tokens_seen);
  // Every request has ended, and the disk has nothing left to do.
  void AtRest();

 private:
  void CheckRequests();
  // Whoever must have ended by now has ended.
  void CheckEnd(const Asked& asked);
  // What waits for its reader is within the limit, and does not wait for ever.
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
