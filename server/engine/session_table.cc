// SPDX-License-Identifier: Apache-2.0
#include "server/engine/session_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"

namespace rivulet {

SessionTable::SessionTable(const SessionLimits& limits, bool with_bos, StateStore* states)
    : limits_(limits), with_bos_(with_bos), states_(states) {}

absl::Status SessionTable::CheckRoom(int count) const {
  if (size() + count <= limits_.max_sessions) return absl::OkStatus();
  ErrorDetail detail;
  detail.reason = "SESSION_LIMIT";
  detail.retry_after = absl::Seconds(1);
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat(size(), " sessions are open and ", count, " more are asked for; ",
                                limits_.max_sessions, " are allowed."),
                   detail);
}

absl::StatusOr<ClientSession*> SessionTable::Open(absl::string_view tenant,
                                                  absl::Duration idle_timeout, absl::Time now) {
  RIVULET_RETURN_IF_ERROR(CheckRoom(1));
  SessionId id = SessionId::Random();
  auto session = std::make_unique<ClientSession>(id, std::string(tenant), with_bos_,
                                                 limits_.checkpoint_tokens);
  ClientSession* opened = session.get();
  opened->idle_timeout = idle_timeout;
  opened->last_used = now;
  opened->use = ++uses_;
  next_expiry_ = std::min(next_expiry_, now + idle_timeout);
  sessions_[id] = {std::move(session), order_.insert(order_.end(), opened)};
  return opened;
}

absl::StatusOr<ClientSession*> SessionTable::Find(const SessionId& id, absl::string_view tenant) {
  const auto found = sessions_.find(id);
  if (found != sessions_.end() && found->second.session->tenant == tenant &&
      !found->second.session->closed) {
    return found->second.session.get();
  }
  ErrorDetail detail;
  detail.reason = "SESSION_NOT_FOUND";
  detail.field = "session_id";
  return MakeError(absl::StatusCode::kNotFound,
                   absl::StrCat("session_id is \"", id.ToString(),
                                "\"; no such session is open here: it was closed, was idle for too "
                                "long, or never was."),
                   detail);
}

void SessionTable::Touch(ClientSession* session, absl::Time now) {
  session->last_used = now;
  session->use = ++uses_;
  order_.splice(order_.end(), order_, sessions_.at(session->id).place);
}

void SessionTable::Erase(ClientSession* session) {
  const auto found = sessions_.find(session->id);
  order_.erase(found->second.place);
  sessions_.erase(found);
}

std::vector<const ClientSession*> SessionTable::Of(absl::string_view tenant) const {
  std::vector<const ClientSession*> sessions;
  for (const ClientSession* session : order_) {
    if (session->tenant == tenant && !session->closed) sessions.push_back(session);
  }
  return sessions;
}

void SessionTable::Expire(absl::Time now) {
  if (now < next_expiry_) return;
  next_expiry_ = absl::InfiniteFuture();
  std::vector<ClientSession*> expired;
  for (ClientSession* session : order_) {
    const absl::Time expiry = session->last_used + session->idle_timeout;
    if (session->active == nullptr && expiry <= now) {
      expired.push_back(session);
    } else {
      // A busy one is used again when its request ends.
      next_expiry_ =
          std::min(next_expiry_, session->active == nullptr ? expiry : now + session->idle_timeout);
    }
  }
  for (ClientSession* session : expired) Erase(session);
}

}  // namespace rivulet
