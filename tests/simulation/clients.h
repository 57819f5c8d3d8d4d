// SPDX-License-Identifier: Apache-2.0
// Clients: the sessions as simulated clients know them.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "tests/simulation/journal.h"
#include "tests/simulation/requests.h"

namespace rivulet::simulated {

// A session as its clients know it.
struct Client {
  int number = 0;
  SessionId id;
  std::string tenant;
  uint64_t seed = 0;
  absl::Duration idle;
  std::vector<SessionState> maybe;  // states that explain all observations; at least one
  std::vector<int32_t> appended;    // tokens given last; they may be given again
  bool closing = false;             // CloseSession was called
  bool gone = false;                // closed or expired for certain ...
  int gone_turn = 0;                // ... in this turn
  absl::Time used_low, used_high;   // the last use was between these
};

// Whether `info`, the engine's description of `client`, fits a session in `state`.
bool Fits(const SessionInfo& info, const Client& client, const SessionState& state);

// All sessions that ever were, oldest first. Thread: one.
class Clients {
 public:
  // Both are borrowed.
  Clients(const TurnClock& clock, Journal* journal) : clock_(clock), journal_(journal) {}

  // Adds a session that was opened, and is in one of the states `maybe`.
  Client* Open(const SessionInfo& info, const std::string& tenant, std::vector<SessionState> maybe);
  // Marks sessions as gone that the turn that begins now must find idle for too long.
  void Expire(const Requests& requests);
  bool MayHaveExpired(const Client& client) const {
    return clock_.MayHavePassed(client.used_low + client.idle);
  }
  // A request on the session has just ended. `for_certain`: it certainly used the session.
  void Used(Client* client, bool for_certain);
  // The session was closed, or has expired, in this turn.
  static void Gone(Client* client, int turn);
  // Number of sessions that may have been open when a request of this turn was carried out;
  // `tenant`: only of this tenant.
  int Most(int turn, const std::optional<std::string>& tenant = std::nullopt) const;
  // Replaces each possible state of the request's session by the states that `follow` derives from
  // it. If none is left, a promise is broken.
  void Narrow(const Asked& asked,
              absl::FunctionRef<std::vector<SessionState>(const SessionState&)> follow);

  bool empty() const { return clients_.empty(); }
  // A random session; an open one if a few tries find one. REQUIRES: !empty().
  Client* Choose(Choices* choices);
  auto begin() { return clients_.begin(); }
  auto end() { return clients_.end(); }
  auto begin() const { return clients_.begin(); }
  auto end() const { return clients_.end(); }

 private:
  const TurnClock& clock_;
  Journal* const journal_;
  std::deque<Client> clients_;
};

}  // namespace rivulet::simulated
