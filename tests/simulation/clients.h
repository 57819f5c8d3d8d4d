// SPDX-License-Identifier: Apache-2.0
// Clients: what simulated clients know of their sessions.
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

// A client session as its clients know it.
struct Client {
  int number = 0;
  SessionId id;
  std::string tenant;
  uint64_t seed = 0;
  absl::Duration idle;
  std::vector<SessionState> maybe;  // the states that explain all that was seen; at least one
  std::vector<int32_t> appended;    // what was given last; it may be given again
  bool closing = false;             // CloseSession was called
  bool gone = false;                // closed or expired for certain ...
  int gone_turn = 0;                // ... in this turn
  absl::Time used_low, used_high;   // last use lies between
};

// What the engine says of a session of `client` is true if it is in `state`.
bool Fits(const SessionInfo& info, const Client& client, const SessionState& state);

// All sessions that ever were, oldest first. Thread: one.
class Clients {
 public:
  // Both are borrowed.
  Clients(const TurnClock& clock, Journal* journal) : clock_(clock), journal_(journal) {}

  // A session was opened that is in one of the states `maybe`.
  Client* Open(const SessionInfo& info, const std::string& tenant, std::vector<SessionState> maybe);
  // Those are gone that the turn that begins now must find idle for too long.
  void Expire(const Requests& requests);
  bool MayHaveExpired(const Client& client) const {
    return clock_.MayHavePassed(client.used_low + client.idle);
  }
  // A request on it has just ended; not `for_certain`: it may have ended before it used it.
  void Used(Client* client, bool for_certain);
  // It was closed, or has expired, in this turn.
  static void Gone(Client* client, int turn);
  // Sessions that may have been open when a request was carried out that was asked for in this
  // turn; `tenant`: of this one alone.
  int Most(int turn, const std::optional<std::string>& tenant = std::nullopt) const;
  // Keeps the states of its session that `follow` explains, each replaced by what follows from it.
  // None: a promise is broken.
  void Narrow(const Asked& asked,
              absl::FunctionRef<std::vector<SessionState>(const SessionState&)> follow);

  bool empty() const { return clients_.empty(); }
  // One that is open, if some tries find one. REQUIRES: !empty().
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
