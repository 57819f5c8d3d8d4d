// SPDX-License-Identifier: Apache-2.0
// SessionTable: the client sessions of one model. A session belongs to a tenant; under any other
// tenant's name it does not exist. Their states are kept by a StateStore, which may forget them:
// they can be computed again from the sequence, so a client sees only latency.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/engine/client_session.h"

namespace rivulet {

struct SessionLimits {
  int max_sessions = 10000;
  int64_t max_tokens = int64_t{1} << 22;  // of one sequence
  // A request on a session keeps a checkpoint every so many tokens that it feeds; at least 1.
  int64_t checkpoint_tokens = 512;
  int max_waiting = 16;  // requests that wait for one session
  int max_marks = 64;    // of one session
  int max_forks = 256;   // of one ForkSession
  absl::Duration default_idle = absl::Minutes(10);
  absl::Duration max_idle = absl::Hours(24);
};

// Thread: the loop.
class SessionTable {
 public:
  // `states` is borrowed and outlives it.
  SessionTable(const SessionLimits& limits, bool with_bos, StateStore* states);

  const SessionLimits& limits() const { return limits_; }
  StateStore* states() const { return states_; }

  // A new session without tokens. Errors: RESOURCE_EXHAUSTED (SESSION_LIMIT).
  absl::StatusOr<ClientSession*> Open(absl::string_view tenant, absl::Duration idle_timeout,
                                      absl::Time now);
  // OK where `count` more sessions may be opened. Errors: RESOURCE_EXHAUSTED (SESSION_LIMIT).
  absl::Status CheckRoom(int count) const;
  // Errors: NOT_FOUND (SESSION_NOT_FOUND), the same for unknown, closed and foreign ones.
  absl::StatusOr<ClientSession*> Find(const SessionId& id, absl::string_view tenant);
  // It was used: counts for its idle time-out.
  void Touch(ClientSession* session, absl::Time now);
  // REQUIRES: no request has it.
  void Erase(ClientSession* session);
  // Oldest use first.
  std::vector<const ClientSession*> Of(absl::string_view tenant) const;

  // Erases sessions that were idle for too long. Cheap before next_expiry().
  void Expire(absl::Time now);
  absl::Time next_expiry() const { return next_expiry_; }

  int size() const { return static_cast<int>(sessions_.size()); }

 private:
  using Order = std::list<ClientSession*>;
  struct Entry {
    std::unique_ptr<ClientSession> session;
    Order::iterator place;
  };

  const SessionLimits limits_;
  const bool with_bos_;
  StateStore* const states_;
  absl::flat_hash_map<SessionId, Entry> sessions_;
  Order order_;  // by last use, oldest first
  uint64_t uses_ = 0;
  absl::Time next_expiry_ = absl::InfiniteFuture();  // no session expires earlier
};

}  // namespace rivulet
