// SPDX-License-Identifier: Apache-2.0
// SessionCommand: what Engine::Call carries out.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/engine/request.h"
#include "server/sessions/session.h"

namespace rivulet {

class SessionTable;

// An operation on one session, or on all, between two runs. session_calls.h lists the operations.
struct SessionCommand {
  std::optional<SessionLookup> lookup;  // with a shared store: carried out instead of `act`

  RequestKind kind = RequestKind::kGetSession;
  std::string tenant;                 // of the caller
  std::optional<SessionRef> session;  // absent: `act` gets null
  bool close = false;                 // ends the session and the requests on it
  // First brings into memory the latest state of the session that has not seen its last token; with
  // session->position, of the tokens before that position.
  bool with_state = false;
  bool while_draining = false;  // also accepted in a drain, until its deadline
  absl::Time deadline = absl::InfiniteFuture();
  // Called on the loop's thread, once the earlier requests of the session have ended. If it returns
  // an error it must have changed nothing. Null: nothing to do. `state`: see with_state.
  std::function<absl::Status(SessionTable* table, Session* session, absl::Time now,
                             const Checkpoint& state)>
      act;
  std::function<void(absl::Status)> done;  // on the emitter thread, exactly once
};

}  // namespace rivulet
