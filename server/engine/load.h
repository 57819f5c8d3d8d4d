// SPDX-License-Identifier: Apache-2.0
// What an engine reports about itself while it runs.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/engine/request.h"
#include "server/sessions/store/state_store.h"

namespace rivulet {

struct EngineLoad {
  int slots = 0, slots_used = 0;
  int running = 0;                // samples and scores that hold a slot
  int queued = 0, max_queue = 0;  // ... that wait for one
  int max_tenant_queue = 0;
  // Of those that wait: the slots that they need, by Priority, and how long the first has waited.
  std::array<int, kNumPriorities> queued_by_priority{};
  absl::Duration oldest_wait;
  int tenants = 0;                   // that wait for slots or hold some
  int64_t refused = 0;               // requests, since start, because a queue was full
  int parked = 0;                    // samples without slots because their reader does not read
  int preempted = 0;                 // ... because another tenant's requests have them
  int64_t preempted_total = 0;       // since start
  int64_t unread_replies_ended = 0;  // since start, because their client did not read
  double tokens_per_second = 0;      // sampled and fed, over about the last second
  int64_t tokens_total = 0;          // sampled, since start
  int64_t fed_total = 0;             // prompt, appended and scored tokens that were fed, likewise
  int client_sessions = 0;           // open ones
  StateStore::Totals states;         // of all that is kept between runs
  std::string state_file_error;      // the first, empty: none
  int64_t cache_hits = 0, cache_misses = 0;  // requests with a PromptCacheSpec, since start
  int64_t cache_bytes = 0;                   // of cached prompts: states and tokens
  bool draining = false;
  absl::Status health;  // not OK: the backend is poisoned
};

}  // namespace rivulet
