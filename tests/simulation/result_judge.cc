// SPDX-License-Identifier: Apache-2.0
// What is made of the ends of requests.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/base/error.h"
#include "tests/simulation/simulation.h"

namespace rivulet {
namespace {

// The errors of docs/api.md that a simulated client can meet.
const std::map<std::string, absl::StatusCode>& Documented() {
  using Code = absl::StatusCode;
  static const auto* const documented = new std::map<std::string, Code>{
      {"PROMPT_EMPTY", Code::kInvalidArgument},
      {"OUTPUT_POSITION_OUT_OF_RANGE", Code::kInvalidArgument},
      {"MAX_TOKENS_OUT_OF_RANGE", Code::kInvalidArgument},
      {"NUM_SAMPLES_OUT_OF_RANGE", Code::kInvalidArgument},
      {"CACHE_POSITION_OUT_OF_RANGE", Code::kInvalidArgument},
      {"WINDOW_OUT_OF_RANGE", Code::kInvalidArgument},
      {"FORK_COUNT_OUT_OF_RANGE", Code::kInvalidArgument},
      {"IDLE_TIMEOUT_OUT_OF_RANGE", Code::kInvalidArgument},
      {"TOO_MANY_TOKENS", Code::kOutOfRange},
      {"POSITION_OUT_OF_RANGE", Code::kOutOfRange},
      {"GIVEN_TOKENS_BEYOND_POSITION", Code::kFailedPrecondition},
      {"MARK_LIMIT", Code::kFailedPrecondition},
      {"MARK_NOT_FOUND", Code::kNotFound},
      {"SESSION_NOT_FOUND", Code::kNotFound},
      {"QUEUE_FULL", Code::kResourceExhausted},
      {"TENANT_QUEUE_FULL", Code::kResourceExhausted},
      {"SESSION_HASH_MISMATCH", Code::kFailedPrecondition},
      {"SESSION_LIMIT", Code::kResourceExhausted},
      {"TENANT_SESSION_LIMIT", Code::kResourceExhausted},
      {"SESSION_BUSY", Code::kResourceExhausted},
      {"READER_TOO_SLOW", Code::kResourceExhausted},
      {"CANCELLED", Code::kCancelled},
      {"SESSION_CLOSED", Code::kCancelled},
      {"DEADLINE_EXCEEDED", Code::kDeadlineExceeded},
      {"NON_FINITE_OUTPUT", Code::kDataLoss},
      {"BACKEND_FAILED", Code::kUnavailable},
      {"DRAINING", Code::kUnavailable},
      {"SHUTDOWN", Code::kUnavailable},
  };
  return *documented;
}

}  // namespace

void Simulation::Remove(const Asked* asked) {
  asked_.remove_if([asked](const Asked& other) { return &other == asked; });
}

void Simulation::JudgeMessage(const absl::Status& status) {
  const absl::string_view message = status.message();
  const bool printable =
      std::all_of(message.begin(), message.end(), [](char c) { return c >= ' '; });
  if (message.empty() || !printable) Broken("I10: no message of one line: " + status.ToString());
  if (absl::StrContains(message, "0x") || absl::StrContains(message, " /") ||
      absl::StrContains(message, ".cc")) {
    Broken("I10: a pointer or a path in: " + status.ToString());
  }
}

// Sessions that may have been open when a request was carried out that was asked for in this turn;
// `tenant`: of this one alone.
int Simulation::MostClients(int turn, const std::optional<std::string>& tenant) const {
  return static_cast<int>(
      std::count_if(clients_.begin(), clients_.end(), [&](const Client& client) {
        return (!client.gone || client.gone_turn > turn) && (!tenant || client.tenant == *tenant);
      }));
}

bool Simulation::HasCause(const Asked& asked, const std::string& reason) const {
  if (reason == "CANCELLED") return asked.cancelled.has_value();
  if (reason == "SESSION_CLOSED")
    return asked.client != nullptr && asked.client->closing && !asked.foreign;
  if (reason == "DEADLINE_EXCEEDED") return clock_went_back_ || latest_ >= asked.deadline;
  if (reason == "DRAINING") return asked.id == 0 ? draining_ : ended_rest_;
  if (reason == "BACKEND_FAILED") return BackendFailed();
  if (reason == "SHUTDOWN") return stopping_;
  if (reason == "SESSION_NOT_FOUND") {
    return asked.foreign || asked.client->gone || MayHaveExpired(*asked.client);
  }
  if (reason == "SESSION_LIMIT") {
    return MostClients(asked.turn) + asked.opens > world_.options.sessions.max_open_sessions;
  }
  if (reason == "TENANT_SESSION_LIMIT") {
    const int own = MostClients(asked.turn, asked.tenant);
    return own + asked.opens > truth_.MostSessions(MostClients(asked.turn), own);
  }
  if (reason == "SESSION_BUSY") {
    const auto before = std::count_if(asked_.begin(), asked_.end(), [&](const Asked& other) {
      return other.client == asked.client && !other.foreign && !other.closes &&
             other.number < asked.number;
    });
    return before > world_.options.sessions.max_waiting;
  }
  if (reason == "READER_TOO_SLOW") {
    return asked.reply != nullptr && world_.options.reader_timeout < absl::InfiniteDuration();
  }
  if (reason == "QUEUE_FULL") {
    int places = 0;
    int64_t tokens = 0;
    for (const Asked& other : asked_) {
      places += other.places;
      tokens += other.tokens;
    }
    return places > world_.fake.limits.num_slots + world_.options.max_queue ||
           tokens > world_.options.max_queue_tokens;
  }
  if (reason == "TENANT_QUEUE_FULL") return TenantTookTooMuch(asked);
  // Before it was accepted, a request is judged by itself alone.
  if (asked.id == 0 && !asked.refusal.empty() && reason == asked.refusal) return true;
  if (asked.id == 0)
    return reason == "PROMPT_EMPTY" ? truth_.bos() == 0
                                    : reason == "TOO_MANY_TOKENS" && world_.config.max_tokens() &&
                                          asked.tokens > *world_.config.max_tokens();
  return true;  // for its own kind to judge
}

void Simulation::JudgeError(const Asked& asked, const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  Count(reason);
  JudgeMessage(status);
  const auto documented = Documented().find(reason);
  if (documented == Documented().end() || documented->second != status.code()) {
    Broken(absl::StrCat("I8: ", asked.what,
                        " ended with what is not documented: ", status.ToString()));
  } else if (!HasCause(asked, reason)) {
    Broken(absl::StrCat("I8: ", asked.what, " had no cause to end with ", status.ToString()));
  }
  // How long sessions stay open is up to their clients.
  const bool of_sessions = reason == "SESSION_LIMIT" || reason == "TENANT_SESSION_LIMIT";
  if (absl::IsResourceExhausted(status) && reason != "READER_TOO_SLOW" && !of_sessions &&
      GetErrorDetail(status).retry_after <= absl::ZeroDuration()) {
    Broken("I8: RESOURCE_EXHAUSTED does not say when to try again");
  }
}

void Simulation::Used(Client* client, bool for_certain) {
  client->used_high = std::max(client->used_high, now_);
  // Told now, it may have ended in the last turn whose ends were told, after they were.
  if (for_certain) client->used_low = turn_clocks_[static_cast<size_t>(told_turn_)];
}

bool Simulation::End(Asked* asked, const absl::Status& status) {
  Note([&] { return absl::StrCat(asked->what, " ends: ", status.ToString()); });
  const std::string reason = ReasonOf(status);
  if (status.ok()) {
    Count("OK");
    const Client* const client = asked->client;
    const bool gone = client != nullptr && client->gone && client->gone_turn <= asked->turn;
    if (asked->foreign || gone)
      Broken(
          absl::StrCat("I4: ", asked->what, " was served on a session that is not there for it"));
  } else {
    JudgeError(*asked, status);
  }
  if (reason == "SESSION_NOT_FOUND") {
    if (asked->client != nullptr && !asked->foreign && !asked->client->gone) {
      asked->client->gone = true;
      asked->client->gone_turn = turn_;
      Count("expired");
    }
    return false;
  }
  if (reason == "SESSION_BUSY") return false;
  const bool outside = EndedFromOutside(status);
  if (asked->client != nullptr && !asked->foreign) Used(asked->client, !outside);
  return !outside;
}

Simulation::Client* Simulation::NewClient(const SessionInfo& info, const std::string& tenant,
                                          std::vector<SessionState> maybe) {
  for (const Client& other : clients_) {
    if (other.id == info.id) Broken("a session id is used again");
  }
  Client& client = clients_.emplace_back();
  client.number = static_cast<int>(clients_.size());
  client.id = info.id;
  client.tenant = tenant;
  client.seed = info.seed;
  client.idle = info.idle_timeout;
  client.maybe = std::move(maybe);
  client.used_high = now_;
  Used(&client, true);
  Note([&] {
    return absl::StrCat("session ", client.number, " of \"", tenant, "\", idle ",
                        absl::FormatDuration(client.idle));
  });
  return &client;
}

void Simulation::Narrow(const Asked& asked,
                        absl::FunctionRef<std::vector<SessionState>(const SessionState&)> follow) {
  if (asked.client == nullptr || asked.foreign) return;
  std::vector<SessionState> next;
  for (const SessionState& state : asked.client->maybe) {
    for (SessionState& possible : follow(state)) {
      if (std::find(next.begin(), next.end(), possible) == next.end())
        next.push_back(std::move(possible));
    }
  }
  if (next.empty()) {
    for (const SessionState& state : asked.client->maybe) {
      Note([&] {
        return absl::StrCat("session ", asked.client->number, " held ",
                            absl::StrJoin(state.tokens, " "));
      });
    }
    return Broken(absl::StrCat("I1/I4: no state of session ", asked.client->number, " explains ",
                               asked.what));
  }
  asked.client->maybe = std::move(next);
}

bool Simulation::Fits(const SessionInfo& info, const Client& client, const SessionState& state) {
  return info.id == client.id && info.position == state.size() && info.hash == state.hash() &&
         info.marks == state.marks && info.seed == client.seed && info.idle_timeout == client.idle;
}

// What the request found of others' work, and what it may leave for others.
void Simulation::JudgeShared(const Asked& asked, const PromptCacheSpec& cache,
                             const SessionState& given, int64_t appended, int64_t cached,
                             int64_t most) {
  // Else nobody can tell which of its tokens are meant.
  const bool certain = asked.client == nullptr || asked.client->maybe.size() == 1;
  if (certain && (cached < 0 || cached > (cache.enabled ? most : 0))) {
    Broken(absl::StrCat("I9: ", asked.what, " says that ", cached, " of its ", appended,
                        " tokens were not fed; at most ", cache.enabled ? most : 0, " can be"));
  }
  if (!cache.enabled) return;
  const std::string scope = SharedPrompts::Scope(asked.tenant, cache.salt);
  shared_.Offer(asked.number, asked.turn, scope, given.tokens);
  if (cached <= 0 || !certain) return;
  Count("cache hit");
  const auto end = given.tokens.begin() + (given.size() - appended + cached);
  shared_.Hit(asked.number, turn_, scope, {given.tokens.begin(), end});
}

void Simulation::JudgeUsage(const Asked& asked, const GenerateSpec& spec, const SeenReply& seen,
                            const Usage& usage) {
  int64_t tokens = 0;
  for (const SeenSample& sample : seen.samples)
    tokens += static_cast<int64_t>(sample.tokens.size());
  tokens_seen_ += tokens;
  if (usage.completion_tokens != tokens ||
      usage.prompt_tokens != static_cast<int64_t>(spec.prompt.size())) {
    Broken(absl::StrCat("I9: the usage of ", asked.what, " is not what was seen"));
  }
  const bool reads_state = spec.cache.enabled && disk_.has_value();
  const bool waits_at_once = !spec.session && !reads_state;
  if (waits_at_once) JudgeWait(asked, asked.arrival + usage.queue_time);
  if (tokens == 0) return;  // it may have ended without slots
  turns_.Note({.number = asked.number,
               .tenant = asked.tenant,
               .priority = asked.priority,
               .slots = spec.num_samples,
               .waits_at_once = waits_at_once,
               .first = asked.first,
               .holds = world_.parked_room().readers == 0,
               .arrival = asked.arrival,
               .admitted = asked.arrival + usage.queue_time,
               .ended = asked.arrival + usage.total_time});
}

void Simulation::JudgeWait(const Asked& asked, absl::Time admitted) {
  if (!asked.first || clock_went_back_ || !world_.room_for_all()) return;
  const auto after = std::upper_bound(turn_clocks_.begin(), turn_clocks_.end(), admitted);
  const auto turn = static_cast<size_t>(after - turn_clocks_.begin() - 1);
  const int64_t runs = turn_runs_[turn] - asked.runs_before;
  const int64_t most = int64_t{world_.options.preempt_after_runs} * asked.tenants;
  if (runs > 0) Count("a tenant's first request waited");
  if (runs > most) {
    Broken(absl::StrCat("fair shares: ", asked.what, ", the first of its tenant, waited for ", runs,
                        " runs; promised: at most ", most));
  }
}

void Simulation::EndGenerate(Asked* asked, const GenerateSpec& spec, const SeenReply& seen,
                             const Usage& usage) {
  const bool reached = End(asked, seen.status) || EndedFromOutside(seen.status);
  JudgeUsage(*asked, spec, seen, usage);
  Note([&] {
    return absl::StrCat(asked->what, " brought ", absl::StrJoin(seen.samples[0].tokens, " "));
  });
  if (!spec.session) {
    SessionState prompt;
    for (const int32_t token : spec.prompt) prompt.Append(token, false);
    JudgeShared(*asked, spec.cache, prompt, prompt.size(), usage.cached_prompt_tokens,
                std::max<int64_t>(0, prompt.size() - 1));
    const std::string wrong = truth_.Judge(spec, seen);
    if (!wrong.empty()) Broken(absl::StrCat("I1: ", asked->what, ": ", wrong));
  } else if (reached) {
    Narrow(*asked, [&](const SessionState& state) {
      std::vector<SessionState> after = truth_.After(state, asked->client->seed, spec, seen);
      SessionState begun = state;
      int64_t appended = 0;
      if (!after.empty() && truth_.Extend(*spec.session, spec.prompt, &begun, &appended).empty()) {
        JudgeShared(*asked, spec.cache, begun, appended, usage.cached_prompt_tokens,
                    std::max<int64_t>(0, appended - 1));
      }
      return after;
    });
  } else if (!seen.samples[0].tokens.empty()) {
    Broken(absl::StrCat("I4: ", asked->what, " brought tokens of a session that it did not reach"));
  }
  Remove(asked);
}

void Simulation::EndScore(Asked* asked, const ScoreSpec& spec,
                          const absl::StatusOr<ScoreResult>& seen) {
  if (End(asked, seen.status())) {
    const std::optional<ScoreResult> want = truth_.Score(spec);
    const bool right = seen.ok() ? want && SameScore(*want, *seen)
                                 : !want && ReasonOf(seen.status()) == "NON_FINITE_OUTPUT";
    if (!right) Broken(absl::StrCat("I1: ", asked->what, " is wrong: ", seen.status().ToString()));
  }
  Remove(asked);
}

void Simulation::EndAppend(Asked* asked, const AppendSpec& spec,
                           const absl::StatusOr<ScoreResult>& seen) {
  if (End(asked, seen.status()) || EndedFromOutside(seen.status())) {
    Narrow(*asked, [&](const SessionState& state) {
      std::vector<SessionState> after = truth_.After(state, asked->client->seed, spec, seen);
      SessionState begun = state;
      int64_t appended = 0;
      if (!after.empty() && truth_.Extend(spec.session, spec.tokens, &begun, &appended).empty()) {
        JudgeShared(*asked, spec.cache, begun, appended, seen.ok() ? seen->cached_tokens : 0,
                    spec.score ? 0 : appended);
      }
      return after;
    });
    if (seen.ok()) asked->client->appended = spec.tokens;
  }
  Remove(asked);
}

}  // namespace rivulet
