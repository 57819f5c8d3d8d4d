// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/checks.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "tests/simulation/truth.h"

namespace rivulet::simulated {

void Checks::CheckEnd(const Asked& asked) {
  if (asked.turn >= clock_.turn() - 1) return;
  const char* over = nullptr;
  if (engine_.BackendFailed()) {  // which delays the ends of this turn to the next one
    if (engine_.failed_at_turn() && *engine_.failed_at_turn() < clock_.turn() - 1)
      over = "the backend's failure";
  } else if (asked.cancelled && *asked.cancelled < clock_.turn() - 1) {
    over = "its cancel";
  } else if (clock_.HasPassed(asked.deadline)) {
    over = "its deadline";
  }
  if (over != nullptr) journal_->Broken("I8: ", asked.what, " goes on after ", over);
}

void Checks::CheckReader(Asked* asked) {
  if (asked->reply == nullptr || asked->turn >= clock_.turn() - 1) return;
  const absl::Duration timeout = world_.options.reader_timeout;
  const int64_t pending = asked->reply->pending_bytes();
  if (pending <= world_.options.max_pending_bytes) {
    asked->full_since.reset();
    asked->was_full = false;
  } else if (!std::exchange(asked->was_full, true)) {
    // The pause begins with the next tokens, perhaps in the next turn.
  } else if (!asked->full_since) {
    asked->full_since = clock_.now();
  } else if (!clock_.went_back() && !engine_.BackendFailed() &&
             clock_.began(clock_.turn() - 1) >= *asked->full_since + timeout) {
    journal_->Broken("I8: ", asked->what, " waits for its reader for more than ",
                     absl::FormatDuration(timeout));
  }
  const BackendLimits& limits = world_.fake.limits;
  const int64_t burst = std::max(limits.max_steps, 1 + limits.drafts.most) + 2;
  constexpr int64_t kTokenBytes = 4 + 1 + 4;  // the id, a character, a logprob
  const int64_t most =
      world_.options.max_pending_bytes + (burst * asked->places + asked->held_back) * kTokenBytes;
  if (pending > most) {
    journal_->Broken("I6: ", asked->what, " has ", pending, " pending bytes");
  }
}

void Checks::AfterTurn(bool idle, int64_t holders, int64_t tokens_seen) {
  if (journal_->ok()) CheckRequests();
  if (journal_->ok()) CheckLoad(idle, holders, tokens_seen);
}

void Checks::CheckRequests() {
  std::map<const Client*, int> waiting;
  for (Asked& asked : *requests_) {
    CheckEnd(asked);
    CheckReader(&asked);
    if (asked.client != nullptr && !asked.foreign && !asked.closes &&
        asked.turn < clock_.turn() - 1) {
      ++waiting[asked.client];
    }
  }
  for (const auto& [client, count] : waiting) {
    if (count > world_.options.sessions.max_waiting + 1) {
      journal_->Broken("I6: ", count, " requests on session ", client->number);
    }
  }
  for (const std::string& violation : engine_.probe().violations())
    journal_->Broken("backend: ", violation);
}

void Checks::CheckLoad(bool idle, int64_t holders, int64_t tokens_seen) {
  const EngineLoad load = engine_.load();
  const int places = requests_->places();
  if (load.queued + load.running > load.slots + load.max_queue) journal_->Broken("I6: the queue");
  if (load.queued + load.running != places) {
    journal_->Broken("I9: ", load.queued, " queued, ", load.running, " running, ", places,
                     " asked for");
  }
  CheckParked(load);
  CheckStates(load, holders);
  CheckSessions(load);
  if (idle && !engine_.BackendFailed() && engine_.probe().dirty_slots() > load.slots_used) {
    journal_->Broken("I10: ", engine_.probe().dirty_slots(), " dirty slots, ", load.slots_used,
                     " used");
  }
  if (load.tokens_total < tokens_seen) journal_->Broken("I9: more tokens were seen than drawn");
  if (!load.health.ok() && !engine_.BackendFailed())
    journal_->Broken("I7: health says that the backend failed");
  if (load.health.ok() && engine_.failed_at_turn() && *engine_.failed_at_turn() < clock_.turn()) {
    journal_->Broken("I7: the backend failed and health does not say so");
  }
}

void Checks::CheckSessions(const EngineLoad& load) {
  int least = 0, most = 0;
  std::map<std::string, int> least_of;
  for (const Client& client : clients_) {
    if (client.gone) continue;
    ++most;
    if (client.closing || clients_.MayHaveExpired(client)) continue;
    ++least;
    ++least_of[client.tenant];
  }
  for (const auto& [tenant, count] : least_of) {
    if (count > Truth(world_).MostSessions(0, 0))
      journal_->Broken("I6: the sessions of tenant \"", tenant, "\"");
  }
  if (load.client_sessions < least || load.client_sessions > most) {
    journal_->Broken("I9: ", load.client_sessions,
                     " sessions are open; opened less closed and expired: ", least, " to ", most);
  }
}

void Checks::CheckParked(const EngineLoad& load) {
  const StateMemory room = world_.state_memory();
  const auto least = static_cast<int64_t>(world_.state_size().fixed);
  if (load.parked * least > room.reader_bytes) {
    journal_->Broken("I6: ", load.parked, " samples are parked");
  }
  if (load.preempted > 0 && load.preempted + load.slots_used > room.begun) {
    journal_->Broken("I6: ", load.preempted, " samples were preempted, ", load.slots_used,
                     " hold slots");
  }
  if (load.preempted > load.preempted_total) journal_->Broken("I9: fewer were preempted than wait");
  if (load.preempted > 0 && load.preempted + load.parked > load.queued) {
    journal_->Broken("I9: more were preempted than wait");
  }
  if (load.parked > 0) journal_->Count("parked");
  journal_->SetCount("preempted", load.preempted_total);
  if (world_.config.context > 0) journal_->SetCount("ended at the context", load.ended_at_limit);
}

void Checks::CheckStates(const EngineLoad& load, int64_t holders) {
  const StateStore::Totals& states = load.states;
  const StateLimits& limits = world_.options.states;
  const int64_t state = world_.state_bytes();
  // A read holds the segments of its state that are in memory, also when its request has ended.
  if (world_.grows() && engine_.disk() != nullptr) holders += engine_.disk()->reads_to_come();
  const int64_t most =
      limits.max_memory_bytes + states.writing_bytes + world_.warm_bytes() + holders * state;
  if (states.memory_bytes > most) {
    journal_->Broken("I6: ", states.memory_bytes, " bytes of states, ", states.writing_bytes,
                     " of them on their way to files; ", holders,
                     " requests may hold one; allowed: ", limits.max_memory_bytes);
  }
  if (states.writing_bytes >
      (engine_.disk() != nullptr ? std::max(limits.max_writing_bytes, state) : 0)) {
    journal_->Broken("I6: ", states.writing_bytes, " bytes on their way to files");
  }
  if (states.disk_bytes > limits.max_disk_bytes) {
    journal_->Broken("I6: files of ", states.disk_bytes, " bytes");
  }
  if (load.cache_bytes > world_.options.prefix_cache.max_bytes) {
    journal_->Broken("I6: ", load.cache_bytes, " bytes of cached prompts");
  }
  if (engine_.disk() != nullptr && states.file_errors > engine_.disk()->faults())
    journal_->Broken("I8: a file error without a fault");
}

void Checks::AtRest() {
  const EngineLoad load = engine_.load();
  const StateStore::Totals& states = load.states;
  if (load.slots_used != 0 || load.running != 0 || load.queued != 0 || load.parked != 0 ||
      load.preempted != 0 || load.tenants != 0) {
    journal_->Broken("I9: ", load.slots_used, " slots used, ", load.parked, " samples parked and ",
                     load.tenants, " tenants at rest");
  }
  if (load.unread_replies_ended != journal_->Counted("READER_TOO_SLOW") ||
      load.refused != journal_->Counted("QUEUE_FULL") + journal_->Counted("TENANT_QUEUE_FULL")) {
    journal_->Broken("I9: ", load.unread_replies_ended, " replies were cut and ", load.refused,
                     " requests refused, as the engine counts");
  }
  if (!engine_.BackendFailed() && engine_.probe().dirty_slots() != 0)
    journal_->Broken("I10: dirty slots at rest");
  CheckStates(load, /*holders=*/0);
  const int64_t state = world_.state_bytes();
  const bool other = !world_.grows() && states.memory_bytes != states.in_memory * state;
  if (other || states.writing_bytes != 0) {
    journal_->Broken("I9: ", states.in_memory, " states are in memory, and ", states.memory_bytes,
                     " bytes; ", states.writing_bytes, " on their way to files");
  }
  if (engine_.disk() != nullptr && engine_.disk()->bytes() != states.disk_bytes) {
    journal_->Broken("I9: files of ", engine_.disk()->bytes(), " bytes at rest, said to be ",
                     states.disk_bytes);
  }
  const int64_t kept =
      (world_.grows() ? states.memory_bytes : (states.in_memory + states.on_disk) * state) -
      world_.warm_bytes();
  if (load.client_sessions == 0 && kept > load.cache_bytes) {
    journal_->Broken("I9: ", kept, " bytes of states are kept for nobody");
  }
}

}  // namespace rivulet::simulated
