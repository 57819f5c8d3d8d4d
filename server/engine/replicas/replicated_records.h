// SPDX-License-Identifier: Apache-2.0
// What an engine writes into a store that replicas share, and what it checks of what it finds.
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

// What a record says of the model and must find here.
struct ReplicaIdentity {
  std::string model_name, weights_sha256, config_sha256, numerics_id;
  int64_t vocab_size = 0;
};

// A claim that no other write has.
std::string NewStoreClaim();
// UNAVAILABLE (SESSION_STORE), or DATA_LOSS (SESSION_RECORD_DAMAGED), as `cause` says; what
// IsOfRecord stays.
absl::Status StoreUnavailable(const absl::Status& cause);

// The sets that a session of `model` is in, without limits: that of the model, that of the tenant
// there, and that of the key where there is one.
std::vector<StoreSet> ReplicatedSetsOf(const std::string& model, const std::string& tenant,
                                       const std::string& key);
// The same for `session`; of a new one with the limits on how many may be open. Where no limit on a
// tenant is set, one tenant leaves an eighth to the others.
std::vector<StoreSet> SetsFor(const ReplicaIdentity& identity, const Session& session,
                              const SessionLimits& limits, bool is_new);
// RESOURCE_EXHAUSTED: the set with this index has no room.
absl::Status SetFull(size_t set, int64_t members);
// What the tenant's sessions of all models count for, where there is a limit on it. `grows`: the
// write is refused beyond the limit.
StoreAccount AccountOf(const std::string& tenant, const SessionLimits& limits, bool grows);
// RESOURCE_EXHAUSTED: the tenant's sessions take `bytes` of the store.
absl::Status AccountFull(int64_t bytes, const SessionLimits& limits);

// What is to be stored of a session, except its epoch and chunks.
SessionRecord RecordOf(const Session& session, const ReplicaIdentity& identity, absl::Time now);
// What takes the place of the record of a session that was closed. Chunks that another session may
// use stay until they expire. `expected` is not set.
StoreWrite TombstoneOf(const SessionId& id, SessionRecord record, const SessionLimits& limits);
// OK where there is such a session: its record is of this tenant and of a model with this name, and
// not closed. Errors: NOT_FOUND (SESSION_NOT_FOUND).
absl::Status CheckExists(const SessionRecord& record, const ReplicaIdentity& identity,
                         const std::string& tenant, const SessionId& id);
// CheckExists, and OK where it was opened with the model that is loaded. Errors:
// FAILED_PRECONDITION (SESSION_MODEL).
absl::Status CheckRecord(const SessionRecord& record, const ReplicaIdentity& identity,
                         const Session& session);

}  // namespace rivulet
