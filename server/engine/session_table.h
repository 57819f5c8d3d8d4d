// SPDX-License-Identifier: Apache-2.0
// SessionTable: the client sessions of one model, and how much memory their states may take.
//
// A session belongs to a tenant; under any other tenant's name it does not exist. States beyond the
// limit are forgotten, those of the sessions used longest ago first: they can be computed again
// from the sequence, so a client sees only latency.
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
  int64_t max_state_bytes = int64_t{1} << 30;  // of all checkpoints together, each counted once
  int64_t max_tokens = int64_t{1} << 22;       // of one sequence
  int max_waiting = 16;                        // requests that wait for one session
  int max_marks = 64;                          // of one session
  int max_forks = 256;                         // of one ForkSession
  absl::Duration default_idle = absl::Minutes(10);
  absl::Duration max_idle = absl::Hours(24);
};

// Thread: the loop.
class SessionTable {
 public:
  SessionTable(const SessionLimits& limits, bool with_bos);

  const SessionLimits& limits() const { return limits_; }

  // A new session without tokens. Errors: RESOURCE_EXHAUSTED (SESSION_LIMIT).
  absl::StatusOr<ClientSession*> Open(absl::string_view tenant, absl::Duration idle_timeout,
                                      absl::Time now);
  // OK where `count` more sessions may be opened. Errors: RESOURCE_EXHAUSTED (SESSION_LIMIT).
  absl::Status CheckRoom(int count) const;
  // Errors: NOT_FOUND (SESSION_NOT_FOUND), the same for unknown, closed and foreign ones.
  absl::StatusOr<ClientSession*> Find(const SessionId& id, absl::string_view tenant);
  // It was used: counts for idle time-outs and for what is forgotten first.
  void Touch(ClientSession* session, absl::Time now);
  // REQUIRES: no request has it.
  void Erase(ClientSession* session);
  // Oldest use first.
  std::vector<const ClientSession*> Of(absl::string_view tenant) const;

  // Erases sessions that were idle for too long. Cheap before next_expiry().
  void Expire(absl::Time now);
  absl::Time next_expiry() const { return next_expiry_; }

  // A state as the checkpoints hold it, counted by state_bytes().
  std::shared_ptr<const StateBlob> NewState(std::vector<float> values) const;
  // Forgets states until the limit holds. Call after Keep.
  void FitStates();

  int size() const { return static_cast<int>(sessions_.size()); }
  int64_t state_bytes() const { return meter_->load(); }

 private:
  using Order = std::list<ClientSession*>;
  struct Entry {
    std::unique_ptr<ClientSession> session;
    Order::iterator place;
  };

  const SessionLimits limits_;
  const bool with_bos_;
  const StateBlob::Meter meter_ = std::make_shared<std::atomic<int64_t>>(0);
  absl::flat_hash_map<SessionId, Entry> sessions_;
  Order order_;                                      // by last use, oldest first
  absl::Time next_expiry_ = absl::InfiniteFuture();  // no session expires earlier
};

}  // namespace rivulet
