// SPDX-License-Identifier: Apache-2.0
// A SessionStore that keeps everything in another one, encrypted (sealer.h). That store, and who
// reads or writes there, learns the ids of sessions, claims, leases and expiries, sizes, and which
// sessions are in one set: not whose these are, and no token.
//
// - A record is sealed under the file's first key, with the session's id and the claim as
//   associated data. So nobody can show it for another session, or an older one under a newer
//   claim. That the store goes back to an older record with its older claim, as a failover does, is
//   not prevented.
// - A chunk is stored under Sealer::Name of its id, and sealed by its id as the secret. Its id is
//   random and stands in sealed records alone. So nobody can show it for another chunk, and those
//   that a session keeps for months need no key that a rotation has taken out of the file. Its
//   tenant and first position are among the bytes that are sealed, and AppendTokens checks them. It
//   cannot be bound to a session: forks share it.
// - Sets and accounts are stored under Sealer::Name of their names, which hold tenants and names of
//   API keys.
//
// Whoever writes to the store may still remove records and chunks and end leases.
#pragma once

#include <memory>

#include "server/sessions/replicated/session_store.h"
#include "server/sessions/sealed/sealer.h"

namespace rivulet {

// Errors of its calls beyond those of `store`: FAILED_PRECONDITION (SESSION_RECORD_KEY: not
// encrypted, or with a key that is not in the file) and DATA_LOSS (SESSION_RECORD_DAMAGED: changed,
// or of something else). After such an error a write has not happened.
std::unique_ptr<SessionStore> MakeEncryptedSessionStore(std::shared_ptr<SessionStore> store,
                                                        std::shared_ptr<const Sealer> sealer);

}  // namespace rivulet
