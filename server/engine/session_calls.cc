// SPDX-License-Identifier: Apache-2.0
#include "server/engine/session_calls.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/random_word.h"
#include "model/base/strict_json.h"
#include "server/engine/sequences/live_session_command.h"
#include "server/engine/validate.h"

namespace rivulet {
namespace {

absl::Status CheckIdle(const std::optional<absl::Duration>& idle, const SessionLimits& limits) {
  if (!idle || (*idle >= absl::Seconds(1) && *idle <= limits.max_idle)) return absl::OkStatus();
  return InvalidField(
      "IDLE_TIMEOUT_OUT_OF_RANGE", "idle_timeout",
      absl::StrCat("idle_timeout is ", absl::FormatDuration(*idle), "; allowed: 1s to ",
                   absl::FormatDuration(limits.max_idle), "."));
}

// The share of open sessions of a call's key; the call may have no key.
KeyShare SessionsOf(const std::shared_ptr<KeyAccount>& key) {
  return key == nullptr ? KeyShare() : key->sessions();
}

// Submits a call whose action yields a Result for `done`.
template <typename Result>
absl::StatusOr<RequestId> Submit(
    Engine* engine, RequestKind kind, std::string tenant, std::optional<SessionRef> ref,
    absl::Time deadline,
    std::function<absl::Status(SessionTable*, Session*, absl::Time, Result*)> act,
    std::function<void(absl::StatusOr<Result>)> done, bool while_draining = false,
    std::optional<SessionLookup> lookup = std::nullopt,
    void (*show)(std::vector<SessionInfo>, uint64_t, Result*) = nullptr) {
  const auto result = std::make_shared<Result>();
  SessionCommand call;
  if (lookup) {
    call.lookup = std::move(lookup);
    call.lookup->show = [result, show](std::vector<SessionInfo> sessions, uint64_t next) {
      show(std::move(sessions), next, result.get());
    };
  }
  call.kind = kind;
  call.tenant = std::move(tenant);
  call.session = std::move(ref);
  call.deadline = deadline;
  call.while_draining = while_draining;
  call.act = [result, act = std::move(act)](SessionTable* table, Session* session, absl::Time now,
                                            const Checkpoint&) {
    return act(table, session, now, result.get());
  };
  call.done = [result, done = std::move(done)](const absl::Status& status) {
    if (status.ok()) {
      done(std::move(*result));
    } else {
      done(status);
    }
  };
  return engine->Call(std::move(call));
}

}  // namespace

absl::StatusOr<RequestId> OpenSession(Engine* engine, OpenSpec spec, SessionDone done) {
  RIVULET_RETURN_IF_ERROR(CheckIdle(spec.idle_timeout, engine->options().sessions));
  const uint64_t seed = spec.seed ? *spec.seed : RandomWord();
  return Submit<SessionInfo>(
      engine, RequestKind::kOpenSession, spec.tenant, std::nullopt, spec.deadline,
      [spec, seed](SessionTable* table, Session*, absl::Time now, SessionInfo* info) {
        RIVULET_ASSIGN_OR_RETURN(
            Session* const opened,
            table->Open(spec.tenant, spec.idle_timeout.value_or(table->limits().default_idle), now,
                        SessionsOf(spec.key)));
        opened->seed = seed;
        *info = opened->Info(now);
        return absl::OkStatus();
      },
      std::move(done));
}

absl::StatusOr<RequestId> ForkSession(Engine* engine, ForkSpec spec, SessionsDone done) {
  const int max_forks = engine->options().sessions.max_forks;
  if (spec.count < 1 || spec.count > max_forks) {
    return InvalidField("FORK_COUNT_OUT_OF_RANGE", "count",
                        absl::StrCat("count is ", spec.count, "; allowed: 1 to ", max_forks, "."));
  }
  const uint64_t seed = spec.seed ? *spec.seed : RandomWord();
  return Submit<std::vector<SessionInfo>>(
      engine, RequestKind::kForkSession, spec.session.tenant, spec.session, spec.deadline,
      [spec, seed](SessionTable* table, Session* parent, absl::Time now,
                   std::vector<SessionInfo>* forks) {
        RIVULET_ASSIGN_OR_RETURN(const int64_t position, PositionIn(*parent, spec.session, {}));
        const KeyShare of_key = SessionsOf(spec.key);
        RIVULET_RETURN_IF_ERROR(table->CheckLimits(parent->tenant, spec.count, now, of_key));
        for (int i = 0; i < spec.count; ++i) {
          RIVULET_ASSIGN_OR_RETURN(Session* const fork,
                                   table->Open(parent->tenant, parent->idle_timeout, now, of_key));
          fork->CopyFrom(*parent);
          fork->Rewind(position);
          fork->seed = seed + static_cast<uint64_t>(i);
          forks->push_back(fork->Info(now));
        }
        return absl::OkStatus();
      },
      std::move(done));
}

absl::StatusOr<RequestId> RewindSession(Engine* engine, SessionRef ref, absl::Time deadline,
                                        SessionDone done) {
  if (ref.position.has_value() == !ref.mark.empty()) {
    return InvalidField("POSITION_OR_MARK", "position",
                        "position and mark: exactly one of them must be given.");
  }
  std::string tenant = ref.tenant;
  return Submit<SessionInfo>(
      engine, RequestKind::kRewindSession, std::move(tenant), ref, deadline,
      [ref](SessionTable*, Session* session, absl::Time now, SessionInfo* info) {
        int64_t position = ref.position.value_or(0);
        if (!ref.mark.empty()) {
          const auto mark = session->marks().find(ref.mark);
          if (mark == session->marks().end()) {
            ErrorDetail detail;
            detail.reason = "MARK_NOT_FOUND";
            detail.field = "mark";
            return MakeError(absl::StatusCode::kNotFound,
                             absl::StrCat("mark is ", Quoted(ref.mark),
                                          ", which is none of the session's marks."),
                             detail);
          }
          position = mark->second;
        }
        RIVULET_RETURN_IF_ERROR(CheckPosition(position, *session));
        session->Rewind(position);
        *info = session->Info(now);
        info->busy = false;  // with this call alone, which ends now
        return absl::OkStatus();
      },
      std::move(done));
}

absl::StatusOr<RequestId> CloseSession(Engine* engine, SessionRef ref,
                                       std::function<void(absl::Status)> done) {
  SessionCommand call;
  call.kind = RequestKind::kCloseSession;
  call.tenant = ref.tenant;
  call.session = std::move(ref);
  call.close = true;
  call.while_draining = true;
  call.done = std::move(done);
  return engine->Call(std::move(call));
}

absl::StatusOr<RequestId> GetSession(Engine* engine, SessionRef ref, absl::Time deadline,
                                     SessionDone done) {
  std::string tenant = ref.tenant;
  SessionLookup lookup;
  lookup.session = ref.id;
  return Submit<SessionInfo>(
      engine, RequestKind::kGetSession, std::move(tenant), std::nullopt, deadline,
      [ref = std::move(ref)](SessionTable* table, Session*, absl::Time now, SessionInfo* info) {
        RIVULET_ASSIGN_OR_RETURN(const Session* const found, table->Find(ref.id, ref.tenant));
        *info = found->Info(now);
        return absl::OkStatus();
      },
      std::move(done), /*while_draining=*/false, std::move(lookup),
      [](std::vector<SessionInfo> sessions, uint64_t, SessionInfo* info) {
        *info = std::move(sessions.front());
      });
}

absl::StatusOr<RequestId> ListSessions(Engine* engine, const ListSpec& spec,
                                       std::function<void(absl::StatusOr<SessionPage>)> done) {
  if (spec.page_size < 0) {
    return InvalidField("PAGE_SIZE_OUT_OF_RANGE", "page_size",
                        absl::StrCat("page_size is ", spec.page_size,
                                     "; it must be at least 1, or 0 for all sessions."));
  }
  SessionLookup lookup;
  lookup.page_size = spec.page_size;
  lookup.after = spec.after;
  return Submit<SessionPage>(
      engine, RequestKind::kListSessions, spec.tenant, std::nullopt, spec.deadline,
      [spec](SessionTable* table, Session*, absl::Time now, SessionPage* page) {
        uint64_t last = 0;
        for (const Session* session : table->Of(spec.tenant)) {
          if (session->use <= spec.after) continue;
          if (spec.page_size > 0 && std::ssize(page->sessions) == spec.page_size) {
            page->next = last;
            break;
          }
          page->sessions.push_back(session->Info(now));
          last = session->use;
        }
        return absl::OkStatus();
      },
      std::move(done), /*while_draining=*/true, lookup,
      [](std::vector<SessionInfo> sessions, uint64_t next, SessionPage* page) {
        *page = {std::move(sessions), next};
      });
}

absl::StatusOr<RequestId> SnapshotSession(Engine* engine, SessionRef ref, absl::Time deadline,
                                          ImageDone done) {
  const auto image = std::make_shared<SessionImage>();
  SessionCommand call;
  call.kind = RequestKind::kSnapshotSession;
  call.tenant = ref.tenant;
  call.session = std::move(ref);
  call.with_state = true;
  call.while_draining = true;
  call.deadline = deadline;
  const std::optional<int64_t> at = call.session->position;
  call.act = [image, at](SessionTable*, Session* session, absl::Time, const Checkpoint& state) {
    const int64_t position = at.value_or(session->position());
    RIVULET_RETURN_IF_ERROR(CheckPosition(position, *session));
    image->tenant = session->tenant;
    image->seed = session->seed;
    image->history = session->history;
    image->history.Truncate(position);
    image->marks = session->marks();
    std::erase_if(image->marks, [position](const auto& mark) { return mark.second > position; });
    image->state = state;
    return absl::OkStatus();
  };
  call.done = [image, done = std::move(done)](const absl::Status& status) {
    if (!status.ok()) return done(status);
    done(std::move(*image));
  };
  return engine->Call(std::move(call));
}

absl::Status CheckRestored(int64_t tokens, const SessionLimits& limits) {
  const int64_t most = limits.most_tokens();
  if (tokens <= most) return absl::OkStatus();
  return TooManyTokens(
      "", absl::StrCat("the snapshot holds ", tokens, " tokens"), most,
      most == limits.context_tokens ? LimitOf::kContext : LimitOf::kSessions,
      "Restore it on a server that allows more, or take one at an earlier position");
}

absl::StatusOr<RequestId> RestoreSession(Engine* engine, RestoreSpec spec, SessionDone done) {
  const SessionLimits& limits = engine->options().sessions;
  RIVULET_RETURN_IF_ERROR(CheckIdle(spec.idle_timeout, limits));
  RIVULET_RETURN_IF_ERROR(CheckRestored(spec.history.size(), limits));
  const auto shared = std::make_shared<RestoreSpec>(std::move(spec));
  return Submit<SessionInfo>(
      engine, RequestKind::kRestoreSession, shared->tenant, std::nullopt, shared->deadline,
      [shared](SessionTable* table, Session*, absl::Time now, SessionInfo* info) {
        RIVULET_ASSIGN_OR_RETURN(
            Session* const session,
            table->Open(shared->tenant, shared->idle_timeout.value_or(table->limits().default_idle),
                        now, SessionsOf(shared->key)));
        session->Restore(std::move(shared->history), std::move(shared->marks));
        session->seed = shared->seed;
        if (!shared->state.empty()) {
          session->Keep(
              {shared->fed, table->states()->KeepWhole(std::move(shared->state), shared->fed)});
        }
        *info = session->Info(now);
        return absl::OkStatus();
      },
      std::move(done));
}

}  // namespace rivulet
