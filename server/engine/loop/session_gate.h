// SPDX-License-Identifier: Apache-2.0
// SessionGate: whose turn it is on a session.
//
// Requests of one session take effect one after another, in the order in which they arrived: one
// has the session, the others wait. A close waits for nobody: it ends all of them.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/engine/sequences/request.h"
#include "server/sessions/session_table.h"

namespace rivulet {

// Thread: the loop. Requests are borrowed: one that ends while it waits must Leave, one that has
// the session is followed by Release.
class SessionGate {
 public:
  // `states` is borrowed and outlives it.
  SessionGate(const SessionLimits& limits, bool with_bos, StateStore* states);

  SessionTable* table() { return &table_; }

  // A request arrives: finds the session that it names in session_ref, if it names one. True: its
  // turn is now, and it has the session. False: it waits. Errors: NOT_FOUND (SESSION_NOT_FOUND),
  // RESOURCE_EXHAUSTED (SESSION_BUSY: too many wait).
  absl::StatusOr<bool> Enter(Request* request);
  // `closing` arrives, and names a session: nobody finds it any more. Returns the requests that end
  // with it, by SessionClosed(): those that wait, then the one that has it. The session ends with
  // the Release of the last. Errors: NOT_FOUND.
  absl::StatusOr<std::vector<Request*>> Close(Request* closing);
  static absl::Status SessionClosed();

  // Whether `request` has its session, rather than waits for it; false where it has none.
  static bool HasTurn(const Request& request);
  // `request`, which may wait for its turn, ends.
  static void Leave(Request* request);
  // The request that has `session` has ended. Returns the next, which has it from now on; null:
  // there is none, or the session was closed and has ended.
  Request* Release(Session* session, absl::Time now);

 private:
  SessionTable table_;
};

}  // namespace rivulet
