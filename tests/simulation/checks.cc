// SPDX-License-Identifier: Apache-2.0
// What must hold after each turn, and at rest.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/simulation/simulation.h"

namespace rivulet {

// Whoever must have ended by now has ended; whoever waits, waits within the limits.
void Simulation::CheckAsked(const Asked& asked) {
  if (asked.turn >= turn_ - 1) return;
  const char* over = nullptr;
  if (BackendFailed()) {  // which delays the ends of this turn to the next one
    if (failed_at_turn_ && *failed_at_turn_ < turn_ - 1) over = "the backend's failure";
  } else if (asked.cancelled && *asked.cancelled < turn_ - 1) {
    over = "its cancel";
  } else if (!clock_went_back_ && latest_ >= asked.deadline) {
    over = "its deadline";
  }
  if (over != nullptr) Broken(absl::StrCat("I8: ", asked.what, " goes on after ", over));
}

// What waits for its reader is within the limit, and does not wait for ever.
void Simulation::CheckReader(Asked* asked) {
  if (asked->reply == nullptr || asked->turn >= turn_ - 1) return;
  const absl::Duration timeout = world_.options.reader_timeout;
  const int64_t pending = asked->reply->pending_bytes();
  if (pending <= world_.options.max_pending_bytes) {
    asked->full_since.reset();
  } else if (!asked->full_since) {
    asked->full_since = now_;
  } else if (!clock_went_back_ && !BackendFailed() &&
             turn_clocks_[static_cast<size_t>(turn_ - 1)] >= *asked->full_since + timeout) {
    Broken(absl::StrCat("I8: ", asked->what, " waits for its reader for more than ",
                        absl::FormatDuration(timeout)));
  }
  const int64_t burst = world_.fake.limits.max_steps + 2;
  constexpr int64_t kTokenBytes = 4 + 1 + 4;  // the id, a character, a logprob
  const int64_t most =
      world_.options.max_pending_bytes + (burst * asked->places + asked->held_back) * kTokenBytes;
  if (pending > most) {
    Broken(absl::StrCat("I6: ", asked->what, " has ", pending, " pending bytes"));
  }
}

void Simulation::CheckAfterTurn() {
  std::map<const Client*, int> waiting;
  for (Asked& asked : asked_) {
    CheckAsked(asked);
    CheckReader(&asked);
    if (asked.client != nullptr && !asked.foreign && !asked.closes && asked.turn < turn_ - 1) {
      ++waiting[asked.client];
    }
  }
  for (const auto& [client, count] : waiting) {
    if (count > world_.options.sessions.max_waiting + 1) {
      Broken(absl::StrCat("I6: ", count, " requests on session ", client->number));
    }
  }
  for (const std::string& violation : probe_->violations()) Broken("backend: " + violation);
}

bool Simulation::TenantTookTooMuch(const Asked& last) const {
  const EngineOptions& options = world_.options;
  int64_t own = 0, others = 0, own_tokens = 0, others_tokens = 0;
  int requests = 0, with_tokens = 0;
  for (const Asked& asked : asked_) {
    const bool its_own = asked.tenant == last.tenant;
    (its_own ? own : others) += asked.places;
    (its_own ? own_tokens : others_tokens) += asked.tokens;
    requests += its_own ? 1 : 0;
    with_tokens += its_own && asked.tokens > 0 ? 1 : 0;
  }
  const int64_t slots = world_.fake.limits.num_slots;
  if (options.max_tenant_queue > 0 && own > slots + options.max_tenant_queue) return true;
  if (requests <= 1) return false;
  const auto too_much = [](int64_t mine, int64_t left) { return mine > 7 * left + 7; };
  const int64_t beyond = own - std::max<int64_t>(0, slots - others);
  return (beyond > 0 && too_much(beyond, slots + options.max_queue - own - others)) ||
         (last.tokens > 0 && with_tokens > 1 &&
          too_much(own_tokens, options.max_queue_tokens - own_tokens - others_tokens));
}

void Simulation::CheckLoad(bool idle, int64_t holders) {
  const EngineLoad load = engine_->GetLoad();
  int places = 0;
  for (const Asked& asked : asked_) places += asked.places;
  if (load.queued + load.running > load.slots + load.max_queue) Broken("I6: the queue");
  if (load.queued + load.running != places) {
    Broken(absl::StrCat("I9: ", load.queued, " queued + ", load.running, " running, ", places,
                        " asked for"));
  }
  CheckParked(load);
  CheckStates(load, holders);
  int least = 0, most = 0;
  std::map<std::string, int> least_of;
  for (const Client& client : clients_) {
    if (client.gone) continue;
    ++most;
    if (client.closing || MayHaveExpired(client)) continue;
    ++least;
    ++least_of[client.tenant];
  }
  for (const auto& [tenant, count] : least_of) {
    if (count > truth_.MostSessions(0, 0)) Broken("I6: the sessions of tenant \"" + tenant + "\"");
  }
  if (load.client_sessions < least || load.client_sessions > most) {
    Broken(absl::StrCat("I9: ", load.client_sessions,
                        " sessions are open; opened less closed and expired: ", least, " to ",
                        most));
  }
  if (idle && !BackendFailed() && probe_->dirty_slots() > load.slots_used) {
    Broken(
        absl::StrCat("I10: ", probe_->dirty_slots(), " dirty slots, ", load.slots_used, " used"));
  }
  if (load.tokens_total < tokens_seen_) Broken("I9: more tokens were seen than drawn");
  if (!load.health.ok() && !BackendFailed()) Broken("I7: health says that the backend failed");
  if (load.health.ok() && failed_at_turn_ && *failed_at_turn_ < turn_) {
    Broken("I7: the backend failed and health does not say so");
  }
}

void Simulation::CheckParked(const EngineLoad& load) {
  const ParkedRoom room = world_.parked_room();
  if (load.parked > room.readers) {
    Broken(absl::StrCat("I6: ", load.parked, " samples are parked"));
  }
  if (load.preempted > 0 && load.preempted + load.slots_used > room.begun) {
    Broken(absl::StrCat("I6: ", load.preempted, " samples were preempted, ", load.slots_used,
                        " hold slots"));
  }
  if (load.preempted > load.preempted_total) Broken("I9: fewer were preempted than wait");
  if (load.preempted > 0 && load.preempted + load.parked > load.queued) {
    Broken("I9: more were preempted than wait");
  }
  if (load.parked > 0) Count("parked");
  counts_["preempted"] = load.preempted_total;
  if (load.preempted_total == 0) counts_.erase("preempted");
}

void Simulation::CheckStates(const EngineLoad& load, int64_t holders) {
  const StateStore::Usage& states = load.states;
  const StateLimits& limits = world_.options.states;
  const int64_t state = static_cast<int64_t>(world_.fake.limits.bytes_per_slot);
  const int64_t most =
      limits.max_memory_bytes + states.writing_bytes + warm_bytes_ + holders * state;
  if (states.memory_bytes > most) {
    Broken(absl::StrCat("I6: ", states.memory_bytes, " bytes of states, ", states.writing_bytes,
                        " of them on their way to files; ", holders,
                        " requests may hold one; allowed: ", limits.max_memory_bytes));
  }
  if (states.writing_bytes > (disk_ ? std::max(limits.max_writing_bytes, state) : 0)) {
    Broken(absl::StrCat("I6: ", states.writing_bytes, " bytes on their way to files"));
  }
  if (states.disk_bytes > limits.max_disk_bytes) {
    Broken(absl::StrCat("I6: files of ", states.disk_bytes, " bytes"));
  }
  if (load.cache_bytes > world_.options.prefix_cache.max_bytes) {
    Broken(absl::StrCat("I6: ", load.cache_bytes, " bytes of cached prompts"));
  }
  if (disk_ && states.file_errors > disk_->faults()) Broken("I8: a file error without a fault");
}

// Every request has ended, and the disk has nothing left to do.
void Simulation::CheckRest() {
  const EngineLoad load = engine_->GetLoad();
  const StateStore::Usage& states = load.states;
  if (load.slots_used != 0 || load.running != 0 || load.queued != 0 || load.parked != 0 ||
      load.preempted != 0 || load.tenants != 0) {
    Broken(absl::StrCat("I9: ", load.slots_used, " slots used, ", load.parked,
                        " samples parked and ", load.tenants, " tenants at rest"));
  }
  if (load.cut != Counted("READER_TOO_SLOW") ||
      load.refused != Counted("QUEUE_FULL") + Counted("TENANT_QUEUE_FULL")) {
    Broken(absl::StrCat("I9: ", load.cut, " replies were cut and ", load.refused,
                        " requests refused, as the engine counts"));
  }
  if (!BackendFailed() && probe_->dirty_slots() != 0) Broken("I10: dirty slots at rest");
  CheckStates(load, /*holders=*/0);
  const int64_t state = static_cast<int64_t>(world_.fake.limits.bytes_per_slot);
  if (states.memory_bytes != states.in_memory * state || states.writing_bytes != 0) {
    Broken(absl::StrCat("I9: ", states.in_memory, " states are in memory, and ",
                        states.memory_bytes, " bytes; ", states.writing_bytes,
                        " on their way to files"));
  }
  if (disk_ && disk_->bytes() != states.disk_bytes) {
    Broken(absl::StrCat("I9: files of ", disk_->bytes(), " bytes at rest, said to be ",
                        states.disk_bytes));
  }
  const int64_t kept = (states.in_memory + states.on_disk) * state - warm_bytes_;
  if (load.client_sessions == 0 && kept > load.cache_bytes) {
    Broken(absl::StrCat("I9: ", kept, " bytes of states are kept for nobody"));
  }
}

}  // namespace rivulet
