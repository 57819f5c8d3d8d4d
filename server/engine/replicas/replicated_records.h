// SPDX-License-Identifier: Apache-2.0
// What an engine writes into a store that replicas share, and the checks of what it finds there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/sessions/replicated/session_record.h"
#include "server/sessions/replicated/session_store.h"
#include "server/sessions/session_table.h"

namespace rivulet {

// The model here, which must match what a record says of its model.
struct ReplicaIdentity {
  std::string model_name, weights_sha256, config_sha256, numerics_id;
  int64_t vocab_size = 0;
};

// A unique claim for a write.
std::string NewStoreClaim();
// UNAVAILABLE (SESSION_STORE) or DATA_LOSS (SESSION_RECORD_DAMAGED), as `cause` says; a `cause`
// that IsOfRecord is returned as it is.
absl::Status StoreUnavailable(const absl::Status& cause);

// The sets that a session of `model` is in, without limits: the set of the model, the set of the
// tenant with this model, and the set of the key where there is one.
std::vector<StoreSet> ReplicatedSetsOf(const std::string& model, const std::string& tenant,
                                       const std::string& key);
// The same for `session`; for a new session with the limits on open sessions. Where no limit on a
// tenant is set, one tenant leaves an eighth to the others.
std::vector<StoreSet> SetsFor(const ReplicaIdentity& identity, const Session& session,
                              const SessionLimits& limits, bool is_new);
// RESOURCE_EXHAUSTED: the set with this index has no room.
absl::Status SetFull(size_t set, int64_t members);
// The tenant's account in the store, which counts the bytes of its sessions of all models, where
// there is a limit on them. `grows`: the write is refused beyond the limit.
StoreAccount AccountOf(const std::string& tenant, const SessionLimits& limits, bool grows);
// RESOURCE_EXHAUSTED: the tenant's sessions take `bytes` of the store.
absl::Status AccountFull(int64_t bytes, const SessionLimits& limits);

// The record to store for a session, except its epoch and chunks.
SessionRecord RecordOf(const Session& session, const ReplicaIdentity& identity, absl::Time now);
// The write that replaces the record of a closed session. Chunks that another session may use stay
// until they expire. `expected` is not set.
StoreWrite TombstoneOf(const SessionId& id, SessionRecord record, const SessionLimits& limits);
// OK if the session exists: its record is of this tenant and of a model with this name, and not
// closed. Errors: NOT_FOUND (SESSION_NOT_FOUND).
absl::Status CheckExists(const SessionRecord& record, const ReplicaIdentity& identity,
                         const std::string& tenant, const SessionId& id);
// CheckExists, and checks that the session was opened with the loaded model. Further errors:
// FAILED_PRECONDITION (SESSION_MODEL).
absl::Status CheckRecord(const SessionRecord& record, const ReplicaIdentity& identity,
                         const Session& session);

}  // namespace rivulet
