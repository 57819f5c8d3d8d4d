// SPDX-License-Identifier: Apache-2.0
#include "server/engine/replicas/replicated_records.h"

#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/random_word.h"

namespace rivulet {
namespace {

// How long a tombstone stays, for a repeated CloseSession or a late request. A stale copy does not
// need it: without a record the session is NOT_FOUND, too, unless the store was replaced
// (ReplicatedSessions::OnMissing).
constexpr absl::Duration kTombstone = absl::Minutes(10);

}  // namespace

std::string NewStoreClaim() {
  const uint64_t words[2] = {RandomWord(), RandomWord()};
  std::string claim(sizeof words, '\0');
  std::memcpy(claim.data(), words, sizeof words);
  return claim;
}

absl::Status StoreUnavailable(const absl::Status& cause) {
  if (IsOfRecord(cause)) return cause;
  // The store's own message is for operators.
  if (absl::IsDataLoss(cause)) return DamagedRecord("the store reports lost data.");
  ErrorDetail detail;
  detail.reason = "SESSION_STORE";
  detail.retry_after = absl::Seconds(1);
  return MakeError(absl::StatusCode::kUnavailable,
                   absl::IsResourceExhausted(cause)
                       ? "The store of sessions that replicas share is full."
                       : "The store of sessions that replicas share does not answer.",
                   detail);
}

std::vector<StoreSet> ReplicatedSetsOf(const std::string& model, const std::string& tenant,
                                       const std::string& key) {
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  std::vector<StoreSet> sets = {{absl::StrCat("model/", model), kAny},
                                {absl::StrCat("tenant/", model, "/", tenant), kAny}};
  if (!key.empty()) sets.push_back({absl::StrCat("key/", model, "/", key), kAny});
  return sets;
}

absl::Status SetFull(size_t set, int64_t members) {
  constexpr absl::string_view kReasons[] = {"SESSION_LIMIT", "TENANT_SESSION_LIMIT",
                                            "API_KEY_SESSION_LIMIT"};
  constexpr absl::string_view kOwners[] = {"All replicas together have",
                                           "On all replicas together the tenant has",
                                           "On all replicas together the key has"};
  ErrorDetail detail;
  detail.reason = std::string(kReasons[set]);
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat(kOwners[set], " ", members,
                                " open sessions, which is the limit. Close sessions that are "
                                "not needed, or open them with a shorter idle_timeout."),
                   detail);
}

StoreAccount AccountOf(const std::string& tenant, const SessionLimits& limits, bool grows) {
  if (limits.max_tenant_bytes == 0) return {};
  return {absl::StrCat("tenant/", tenant), grows ? limits.max_tenant_bytes : 0};
}

absl::Status AccountFull(int64_t bytes, const SessionLimits& limits) {
  ErrorDetail detail;
  detail.reason = "TENANT_STORE_LIMIT";
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("The tenant's sessions have ", bytes,
                                " bytes in the store that replicas share; session-store-tenant-mib "
                                "allows ",
                                limits.max_tenant_bytes,
                                ". Close sessions that are not needed, or open them with a shorter "
                                "idle_timeout: forked tokens count until they expire."),
                   detail);
}

std::vector<StoreSet> SetsFor(const ReplicaIdentity& identity, const Session& session,
                              const SessionLimits& limits, bool is_new) {
  std::vector<StoreSet> sets =
      ReplicatedSetsOf(identity.model_name, session.tenant, session.key.key);
  if (!is_new) return sets;
  const int64_t all = limits.max_open_sessions;
  sets[0].most = all;
  sets[1].most = limits.max_tenant_sessions > 0 ? limits.max_tenant_sessions : all - all / 8;
  if (sets.size() > 2) sets[2].most = session.key.most;
  return sets;
}

SessionRecord RecordOf(const Session& session, const ReplicaIdentity& identity, absl::Time now) {
  SessionRecord record;
  record.model_name = identity.model_name;
  record.weights_sha256 = identity.weights_sha256;
  record.config_sha256 = identity.config_sha256;
  record.numerics_id = identity.numerics_id;
  record.tenant = session.tenant;
  record.key = session.key.key;
  record.position = session.position();
  record.sequence_hash = session.history.hash();
  record.seed = session.seed;
  record.marks = session.marks();
  record.idle_timeout = session.idle_timeout;
  record.written = now;
  record.abandoned_from = session.abandoned_from;
  return record;
}

StoreWrite TombstoneOf(const SessionId& id, SessionRecord record, const SessionLimits& limits) {
  ++record.epoch;
  record.closed = true;
  StoreWrite write;
  if (record.owns_chunks) {
    for (const ChunkUse& use : record.chunks) write.dropped_chunks.push_back(use.id);
  }
  record.chunks.clear();
  write.session = id.ToString();
  write.record.claim = NewStoreClaim();
  write.record.bytes = EncodeRecord(record);
  write.expiry = kTombstone;
  write.sets = ReplicatedSetsOf(record.model_name, record.tenant, record.key);
  write.leaves_sets = true;
  write.account = AccountOf(record.tenant, limits, /*grows=*/false);
  return write;
}

absl::Status CheckExists(const SessionRecord& record, const ReplicaIdentity& identity,
                         const std::string& tenant, const SessionId& id) {
  const bool exists =
      !record.closed && record.tenant == tenant && record.model_name == identity.model_name;
  return exists ? absl::OkStatus() : SessionTable::NotFound(id);
}

absl::Status CheckRecord(const SessionRecord& record, const ReplicaIdentity& identity,
                         const Session& session) {
  RIVULET_RETURN_IF_ERROR(CheckExists(record, identity, session.tenant, session.id));
  if (record.weights_sha256 == identity.weights_sha256 &&
      record.config_sha256 == identity.config_sha256) {
    return absl::OkStatus();
  }
  ErrorDetail detail;
  detail.reason = "SESSION_MODEL";
  detail.field = "session_id";
  return MakeError(
      absl::StatusCode::kFailedPrecondition,
      absl::StrCat("The session was opened with other weights or another config.json of \"",
                   identity.model_name, "\" than those that this server has loaded."),
      detail);
}

}  // namespace rivulet
