// SPDX-License-Identifier: Apache-2.0
// SessionCall: what Engine::Call carries out.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/engine/request.h"
#include "server/sessions/session.h"

namespace rivulet {

class SessionTable;

// Something done to sessions, or to one, between two runs. session_calls.h has those that
// there are.
struct SessionCall {
  RequestKind kind = RequestKind::kGetSession;
  std::string tenant;                 // on whose account
  std::optional<SessionRef> session;  // absent: `act` gets null
  bool close = false;                 // ends what is running on the session, and the session
  // Have the session's latest state with all but its last token fed, or fewer, in memory first; of
  // its tokens up to session->position, where that is given.
  bool with_state = false;
  bool while_draining = false;  // also taken in a drain, until its deadline
  absl::Time deadline = absl::InfiniteFuture();
  // On the loop's thread, once the requests of the session that came before have ended. An error
  // must have changed nothing. Null: nothing to do. `state`: see with_state.
  std::function<absl::Status(SessionTable* table, Session* session, absl::Time now,
                             const Checkpoint& state)>
      act;
  std::function<void(absl::Status)> done;  // on the emitter thread, exactly once
};

}  // namespace rivulet
