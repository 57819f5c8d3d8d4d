// SPDX-License-Identifier: Apache-2.0
// SessionTable: the sessions of one model. A session belongs to a tenant; for other tenants it does
// not exist. A StateStore keeps the states of sessions and may forget them: states can be computed
// again from the history, so a client sees only latency. The table also orders the requests of a
// session.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/base/key_account.h"
#include "server/sessions/session.h"

namespace rivulet {

struct SessionLimits {
  int max_open_sessions = 10000;
  int max_tenant_sessions = 0;            // of one tenant; 0: its fair share (fair_share.h)
  int64_t max_tenant_bytes = 0;           // in a store that replicas share; 0: no limit
  int64_t max_tokens = int64_t{1} << 22;  // of one history
  int64_t context_tokens = 0;             // room of a slot; 0: no limit
  // Tokens that a request on a session feeds between two checkpoints; at least 1.
  int64_t checkpoint_tokens = 512;
  int max_waiting = 16;  // requests that wait for one session
  int max_marks = 64;    // of one session
  int max_forks = 256;   // of one ForkSession
  absl::Duration default_idle = absl::Minutes(10);
  absl::Duration max_idle = absl::Hours(24);

  int64_t most_tokens() const {
    return context_tokens > 0 ? std::min(context_tokens, max_tokens) : max_tokens;
  }
};

// Thread: the loop.
class SessionTable {
 public:
  // `states` is borrowed and outlives it. `shared`: the sessions are in a store that replicas
  // share, which counts them; the table has copies of some.
  SessionTable(const SessionLimits& limits, bool with_bos, StateStore* states, bool shared = false);

  const SessionLimits& limits() const { return limits_; }
  StateStore* states() const { return states_; }

  // A new session without tokens, which counts for the tenant and the key. Errors: as CheckLimits.
  absl::StatusOr<Session*> Open(absl::string_view tenant, absl::Duration idle_timeout,
                                absl::Time now, const KeyShare& key = {});
  // With `shared`: a place for a session that may be in the store. Errors: NOT_FOUND
  // (SESSION_NOT_FOUND: it is here and of another tenant, or was closed).
  absl::StatusOr<Session*> Adopt(const SessionId& id, absl::string_view tenant, absl::Time now);
  // OK if the tenant, with this key, may open `count` more. Errors: RESOURCE_EXHAUSTED
  // (SESSION_LIMIT: of all; TENANT_SESSION_LIMIT: of the tenant; API_KEY_SESSION_LIMIT: of the
  // key), with retry_after if enough of the counted sessions will soon expire unless they are used.
  // O(count). With `shared` always OK: the store decides.
  absl::Status CheckLimits(absl::string_view tenant, int count, absl::Time now,
                           const KeyShare& key = {}) const;
  // Errors: NOT_FOUND (SESSION_NOT_FOUND), the same for unknown, closed and foreign sessions.
  absl::StatusOr<Session*> Find(const SessionId& id, absl::string_view tenant);
  static absl::Status NotFound(const SessionId& id);
  // The session of any tenant, even if it was closed and has not ended; null: none.
  Session* Get(const SessionId& id) const;
  // The sessions that were opened since the last call and are still here.
  std::vector<Session*> TakeOpened();
  // Erases the idle session that expires first and that `may_go`; false: none found among the first
  // few.
  bool EvictIdle(absl::FunctionRef<bool(const Session&)> may_go);

  // A pinned session neither expires nor is evicted. Its idle time begins anew when it is unpinned.
  void Pin(Session* session);
  void Unpin(Session* session, absl::Time now);

  // Requests of one session take effect one after another, in the order in which they arrived: one
  // request has the session, which then does not expire, and the others wait. Requests are
  // borrowed: call Leave before a waiting request ends, and Release after the request with the
  // session has ended.

  // `request` arrives. True: its turn is now, and it has the session. False: it waits. Errors:
  // RESOURCE_EXHAUSTED (SESSION_BUSY: too many wait).
  absl::StatusOr<bool> Enter(Session* session, LiveRequest* request);
  // `request` stops waiting.
  static void Leave(Session* session, LiveRequest* request) {
    std::erase(session->waiters, request);
  }
  // The request that has the session has ended; this counts as a use. Returns the next request,
  // which has the session from now on; null: there is none, or the session was closed and has ended
  // now.
  LiveRequest* Release(Session* session, absl::Time now);
  // Closes the session: Find no longer finds it. Returns the requests to end: the waiting ones,
  // then the request with the session. The session itself ends with the Release after that request.
  std::vector<LiveRequest*> Close(Session* session);

  // The tenant's sessions, the session used longest ago first.
  std::vector<const Session*> Of(absl::string_view tenant) const;

  // Erases sessions that were idle for too long.
  void Expire(absl::Time now);
  // When the next session expires if nobody uses it.
  absl::Time next_expiry() const;

  void ForEach(absl::FunctionRef<void(Session*)> visit) const {
    for (const auto& [id, entry] : sessions_) visit(entry.session.get());
  }
  int size() const { return static_cast<int>(sessions_.size()); }

 private:
  using Order = std::list<Session*>;
  // Sessions that no request has, by the time of their expiry; the second number is Session::use.
  using Idle = absl::btree_map<std::pair<absl::Time, uint64_t>, Session*>;
  struct Tenant {
    Order order;  // by last use, oldest first; all count for its limit
    Idle idle;
  };
  // Sessions that were opened with one key.
  struct OfKey {
    int64_t open = 0;
    Idle idle;
  };
  using Keys = absl::node_hash_map<std::string, OfKey>;  // by name
  struct Entry {
    std::unique_ptr<Session> session;
    Tenant* tenant;
    Keys::value_type* key;  // null: opened without a key
    Order::iterator place;
  };
  Session* Insert(std::unique_ptr<Session> session, absl::Duration idle_timeout, absl::Time now,
                  const KeyShare& key);
  static std::pair<absl::Time, uint64_t> ExpiryOf(const Session& session);
  void EnterIdle(const Entry& entry);
  void LeaveIdle(const Entry& entry);
  void Take(Session* session, LiveRequest* request);
  void GiveBack(Session* session, absl::Time now);
  // REQUIRES: no request has it, or it was closed and its request has ended.
  void Erase(Session* session);

  const SessionLimits limits_;
  const bool with_bos_;
  StateStore* const states_;
  const bool shared_;
  std::vector<SessionId> opened_;  // with `shared`: see TakeOpened
  absl::flat_hash_map<SessionId, Entry> sessions_;
  absl::node_hash_map<std::string, Tenant> tenants_;  // only with sessions
  Keys keys_;                                         // likewise
  Idle idle_;                                         // of all tenants
  uint64_t uses_ = 0;
};

}  // namespace rivulet
