// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/status_judge.h"

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "model/base/error.h"
#include "tests/simulation/truth.h"

namespace rivulet::simulated {
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
      {"RESUME_MISMATCH", Code::kFailedPrecondition},
      {"SESSION_LIMIT", Code::kResourceExhausted},
      {"TENANT_SESSION_LIMIT", Code::kResourceExhausted},
      {"SESSION_BUSY", Code::kResourceExhausted},
      {"READER_TOO_SLOW", Code::kResourceExhausted},
      {"CANCELLED", Code::kCancelled},
      {"SESSION_CLOSED", Code::kCancelled},
      {"DEADLINE_EXCEEDED", Code::kDeadlineExceeded},
      {"NON_FINITE_OUTPUT", Code::kDataLoss},
      {"CONSTRAINT_TOO_HARD", Code::kInvalidArgument},
      {"CONSTRAINT_DEAD_END", Code::kFailedPrecondition},
      {"BACKEND_FAILED", Code::kUnavailable},
      {"DRAINING", Code::kUnavailable},
      {"SHUTDOWN", Code::kUnavailable},
  };
  return *documented;
}

}  // namespace

bool StatusJudge::End(Asked* asked, const absl::Status& status) {
  journal_->Note(asked->what, " ends: ", status);
  const std::string reason = ReasonOf(status);
  if (status.ok()) {
    journal_->Count("OK");
    const Client* const client = asked->client;
    const bool gone = client != nullptr && client->gone && client->gone_turn <= asked->turn;
    if (asked->foreign || gone)
      journal_->Broken("I4: ", asked->what, " was served on a session that is not there for it");
  } else {
    Error(*asked, status);
  }
  if (reason == "SESSION_NOT_FOUND") {
    if (asked->client != nullptr && !asked->foreign && !asked->client->gone) {
      Clients::Gone(asked->client, clock_.turn());
      journal_->Count("expired");
    }
    return false;
  }
  if (reason == "SESSION_BUSY") return false;
  const bool outside = EndedFromOutside(status);
  if (asked->client != nullptr && !asked->foreign) clients_->Used(asked->client, !outside);
  return !outside;
}

void StatusJudge::Error(const Asked& asked, const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  journal_->Count(reason);
  Message(status);
  const auto documented = Documented().find(reason);
  if (documented == Documented().end() || documented->second != status.code()) {
    journal_->Broken("I8: ", asked.what, " ended with what is not documented: ", status);
  } else if (!HasCause(asked, reason)) {
    journal_->Broken("I8: ", asked.what, " had no cause to end with ", status);
  }
  // How long sessions stay open is up to their clients.
  const bool of_sessions = reason == "SESSION_LIMIT" || reason == "TENANT_SESSION_LIMIT";
  if (absl::IsResourceExhausted(status) && reason != "READER_TOO_SLOW" && !of_sessions &&
      GetErrorDetail(status).retry_after <= absl::ZeroDuration()) {
    journal_->Broken("I8: RESOURCE_EXHAUSTED does not say when to try again");
  }
}

bool StatusJudge::HasCause(const Asked& asked, const std::string& reason) const {
  if (reason == "CANCELLED") return asked.cancelled.has_value();
  if (reason == "SESSION_CLOSED")
    return asked.client != nullptr && asked.client->closing && !asked.foreign;
  if (reason == "DEADLINE_EXCEEDED") return clock_.MayHavePassed(asked.deadline);
  if (reason == "DRAINING") return asked.id == 0 ? engine_.draining() : engine_.ended_rest();
  if (reason == "BACKEND_FAILED") return engine_.BackendFailed();
  if (reason == "SHUTDOWN") return engine_.stopping();
  if (reason == "SESSION_NOT_FOUND") {
    return asked.foreign || asked.client->gone || clients_->MayHaveExpired(*asked.client);
  }
  if (reason == "SESSION_LIMIT") {
    return clients_->Most(asked.turn) + asked.opens >
           engine_.world().options.sessions.max_open_sessions;
  }
  if (reason == "TENANT_SESSION_LIMIT") {
    const int own = clients_->Most(asked.turn, asked.tenant);
    return own + asked.opens > Truth(engine_.world()).MostSessions(clients_->Most(asked.turn), own);
  }
  if (reason == "SESSION_BUSY") {
    const auto before = std::count_if(requests_.begin(), requests_.end(), [&](const Asked& other) {
      return other.client == asked.client && !other.foreign && !other.closes &&
             other.number < asked.number;
    });
    return before > engine_.world().options.sessions.max_waiting;
  }
  if (reason == "READER_TOO_SLOW") {
    return asked.reply != nullptr &&
           engine_.world().options.reader_timeout < absl::InfiniteDuration();
  }
  if (reason == "QUEUE_FULL") {
    return requests_.places() >
               engine_.world().fake.limits.num_slots + engine_.world().options.max_queue ||
           requests_.tokens() > engine_.world().options.max_queue_tokens;
  }
  if (reason == "TENANT_QUEUE_FULL") return requests_.TenantTookTooMuch(asked, engine_.world());
  // Before it was accepted, a request is judged by itself alone.
  if (asked.id == 0 && !asked.refusal.empty() && reason == asked.refusal) return true;
  if (asked.id == 0)
    return reason == "PROMPT_EMPTY"
               ? engine_.world().bos() == 0
               : reason == "TOO_MANY_TOKENS" && engine_.world().config.max_tokens() &&
                     asked.tokens > *engine_.world().config.max_tokens();
  return true;  // for its own kind to judge
}

void StatusJudge::Message(const absl::Status& status) {
  const absl::string_view message = status.message();
  const bool printable =
      std::all_of(message.begin(), message.end(), [](char c) { return c >= ' '; });
  if (message.empty() || !printable) journal_->Broken("I10: no message of one line: ", status);
  if (absl::StrContains(message, "0x") || absl::StrContains(message, " /") ||
      absl::StrContains(message, ".cc")) {
    journal_->Broken("I10: a pointer or a path in: ", status);
  }
}

}  // namespace rivulet::simulated
