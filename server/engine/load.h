// SPDX-License-Identifier: Apache-2.0
// What an engine reports about itself while it runs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/engine/request.h"
#include "server/sessions/store/state_store.h"

namespace rivulet {

// What happened to the sessions of an engine in a store that replicas share, since start.
struct ReplicaTotals {
  int64_t takeovers = 0;    // a session here took over what another replica or process had written
  int64_t lost = 0;         // another replica has written a session since (SESSION_MOVED)
  int64_t writes = 0;       // writes of records that the store confirmed
  int64_t rewritten = 0;    // the store had lost tokens of a session that are here
  int64_t not_durable = 0;  // requests that ended well before the store had what they changed
  // Calls that failed, by the errors of SessionStore and of an encrypted SessionStore.
  int64_t unavailable = 0, full = 0, damaged = 0, unreadable = 0;
  // States: written, and their bytes; not written because too many were being written; not written
  // because of an error.
  int64_t states_published = 0, states_published_bytes = 0, states_skipped = 0, states_failed = 0;
  // States that a request was to continue from: read; not read, because they are gone or because of
  // an error: then their tokens are fed again.
  int64_t states_read = 0, states_missing = 0;

  // Counts a call of the store that failed; OK counts nothing.
  void CountCall(const absl::Status& status) {
    unavailable += absl::IsUnavailable(status) ? 1 : 0;
    full += absl::IsResourceExhausted(status) ? 1 : 0;
    damaged += absl::IsDataLoss(status) ? 1 : 0;
    unreadable += absl::IsFailedPrecondition(status) ? 1 : 0;
  }
  void CountStateRead(const absl::Status& status) {
    ++(status.ok() ? states_read : states_missing);
  }
  bool operator==(const ReplicaTotals&) const = default;
};

struct EngineLoad {
  int slots = 0, slots_used = 0;
  int64_t slot_bytes = 0, slot_bytes_used = 0;  // of all slots; of these, filled
  int running = 0;                              // samples and scores that hold a slot
  int queued = 0, max_queue = 0;                // waiting samples, scores, session calls
  int max_tenant_queue = 0;
  // Of the waiting requests: the slots that they need, by Priority; how long the first has waited.
  std::array<int, kNumPriorities> queued_by_priority{};
  absl::Duration oldest_wait;
  int tenants = 0;      // that wait for slots or hold some
  int64_t refused = 0;  // requests, since start, because a queue was full
  // Samples that gave up their slots because their client did not read, until they have slots
  // again.
  int parked = 0;
  int preempted = 0;                 // ... because another tenant's requests got them
  int64_t preempted_total = 0;       // since start
  int64_t unread_replies_ended = 0;  // since start, because their client did not read
  double tokens_per_second = 0;      // sampled and fed, over about the last second
  int64_t tokens_total = 0;          // sampled or forced by a constraint, since start
  int64_t forced_total = 0;          // those that a constraint forced
  int64_t ended_at_limit = 0;  // samples whose sequence could have no more tokens, since start
  int64_t drafted_total = 0, accepted_total = 0;  // drafts that were checked; the right ones
  int64_t fed_total = 0;         // prompt, appended and scored tokens that were fed, likewise
  int client_sessions = 0;       // open ones
  StateStore::Totals states;     // of all that is kept between runs
  std::string state_file_error;  // the first, empty: none
  int64_t cache_hits = 0, cache_misses = 0;  // requests with a PromptCacheSpec, since start
  int64_t cache_bytes = 0;                   // of cached prompts: states and tokens
  ReplicaTotals replication;                 // all 0 where no store is shared
  // In a drain, once the loop has noticed it: states that are being or to be published, and
  // sessions whose latest tokens the shared store does not have.
  std::optional<int> unsaved;
  bool draining = false;
  absl::Status health;  // not OK: the backend is poisoned
};

}  // namespace rivulet
