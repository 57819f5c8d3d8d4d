// SPDX-License-Identifier: Apache-2.0
// A SessionStore that keeps everything in another SessionStore, encrypted (sealer.h). The inner
// store, and whoever reads or writes it, learns the ids of sessions, claims, leases and expiries,
// sizes, and which sessions are in one set, but neither the owners of sessions nor any token.
//
// - A record is sealed under the file's first key, with the session's id and the claim as
//   associated data. So nobody can pass it off as the record of another session, or an older record
//   as the record of a newer claim. The store can still go back to an older record with its older
//   claim, as a failover does.
// - A chunk is stored under Sealer::Name of its id, and sealed by its id as the secret. The id is
//   random and stands only in sealed records. So nobody can pass the chunk off as another chunk,
//   and chunks that a session keeps for months need no key that a rotation has taken out of the
//   file. The sealed bytes include the chunk's tenant and first position, which AppendTokens
//   checks. A chunk cannot be bound to a session, because forks share it.
// - Sets and accounts are stored under Sealer::Name of their names, which hold tenants and names of
//   API keys.
//
// Whoever writes to the store may still remove records and chunks and end leases.
#pragma once

#include <memory>

#include "server/sessions/replicated/session_store.h"
#include "server/sessions/sealed/sealer.h"

namespace rivulet {

// Errors of its calls beside the errors of `store`: FAILED_PRECONDITION (SESSION_RECORD_KEY: not
// encrypted, or with a key that is not in the file) and DATA_LOSS (SESSION_RECORD_DAMAGED: changed,
// or sealed for another place). After such an error a write has not happened.
std::unique_ptr<SessionStore> MakeEncryptedSessionStore(std::shared_ptr<SessionStore> store,
                                                        std::shared_ptr<const Sealer> sealer);

}  // namespace rivulet
