// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/session_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "server/base/fair_share.h"

namespace rivulet {
namespace {

// No retry hint is longer than ten minutes, or too short for anything to change.
constexpr absl::Duration kSoon = absl::Minutes(10);
constexpr absl::Duration kLeastWait = absl::Milliseconds(100);

// The time until `count` of the idle sessions have expired; 0: fewer are idle, or not soon.
template <typename Idle>
absl::Duration RoomIn(const Idle& idle, int64_t count, absl::Time now) {
  if (count > std::ssize(idle)) return absl::ZeroDuration();
  const absl::Time expiry = std::next(idle.begin(), count - 1)->first.first;
  return expiry - now > kSoon ? absl::ZeroDuration() : std::max(expiry - now, kLeastWait);
}

absl::Status Full(absl::string_view reason, absl::Duration retry_after, absl::string_view what) {
  return Exhausted(reason, retry_after,
                   absl::StrCat(what,
                                " Close sessions that are not needed, or open them with a shorter "
                                "idle_timeout."));
}

absl::Status SessionBusy(size_t waiting) {
  ErrorDetail detail;
  detail.reason = "SESSION_BUSY";
  detail.field = "session_id";
  detail.retry_after = absl::Seconds(1);
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat(waiting, " requests wait for this session already."), detail);
}

}  // namespace

SessionTable::SessionTable(const SessionLimits& limits, bool with_bos, StateStore* states,
                           bool shared)
    : limits_(limits), with_bos_(with_bos), states_(states), shared_(shared) {}

absl::Status SessionTable::CheckLimits(absl::string_view tenant, int count, absl::Time now,
                                       const KeyShare& key) const {
  if (shared_) return absl::OkStatus();
  const int64_t wanted = int64_t{size()} + count;
  if (wanted > limits_.max_open_sessions) {
    return Full("SESSION_LIMIT", RoomIn(idle_, wanted - limits_.max_open_sessions, now),
                absl::StrCat(size(), " sessions are open and ", count, " more are asked for; ",
                             limits_.max_open_sessions, " are allowed."));
  }
  static const Idle none;
  const auto of_key = keys_.find(key.key);
  const int64_t with_key = of_key == keys_.end() ? 0 : of_key->second.open;
  if (with_key + count > key.most) {
    return Full("API_KEY_SESSION_LIMIT",
                RoomIn(of_key == keys_.end() ? none : of_key->second.idle,
                       with_key + count - key.most, now),
                absl::StrCat("the key has ", with_key, " open sessions and asks for ", count,
                             " more; it may have ", key.most, "."));
  }
  const auto found = tenants_.find(tenant);
  const int64_t own = found == tenants_.end() ? 0 : std::ssize(found->second.order);
  const int64_t most = limits_.max_tenant_sessions > 0
                           ? limits_.max_tenant_sessions
                           : MostFor(limits_.max_open_sessions, size(), own);
  if (own + count <= most) return absl::OkStatus();
  // A session of the tenant that ends leaves the limit as it is and takes one from the count.
  const Idle& idle = found == tenants_.end() ? none : found->second.idle;
  return Full(
      "TENANT_SESSION_LIMIT", RoomIn(idle, own + count - most, now),
      absl::StrCat("the tenant has ", own, " open sessions and asks for ", count,
                   " more; it may now have ", most, " of ", limits_.max_open_sessions, "."));
}

absl::StatusOr<Session*> SessionTable::Open(absl::string_view tenant, absl::Duration idle_timeout,
                                            absl::Time now, const KeyShare& key) {
  RIVULET_RETURN_IF_ERROR(CheckLimits(tenant, 1, now, key));
  const SessionId id = SessionId::Random();
  if (shared_) opened_.push_back(id);
  return Insert(
      std::make_unique<Session>(id, std::string(tenant), with_bos_, limits_.checkpoint_tokens),
      idle_timeout, now, key);
}

absl::StatusOr<Session*> SessionTable::Adopt(const SessionId& id, absl::string_view tenant,
                                             absl::Time now) {
  if (sessions_.contains(id)) return NotFound(id);
  return Insert(
      std::make_unique<Session>(id, std::string(tenant), with_bos_, limits_.checkpoint_tokens),
      limits_.default_idle, now, {});
}

std::vector<Session*> SessionTable::TakeOpened() {
  std::vector<Session*> opened;
  for (const SessionId& id : std::exchange(opened_, {})) {
    if (Session* const session = Get(id)) opened.push_back(session);
  }
  return opened;
}

bool SessionTable::EvictIdle(absl::FunctionRef<bool(const Session&)> may_go) {
  int looks = 64;
  for (const auto& [expiry, session] : idle_) {
    if (--looks < 0) return false;
    if (!may_go(*session)) continue;
    Erase(session);
    return true;
  }
  return false;
}

Session* SessionTable::Get(const SessionId& id) const {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second.session.get();
}

Session* SessionTable::Insert(std::unique_ptr<Session> session, absl::Duration idle_timeout,
                              absl::Time now, const KeyShare& key) {
  Session* const opened = session.get();
  opened->key = key;
  opened->idle_timeout = idle_timeout;
  opened->last_used = now;
  opened->use = ++uses_;
  Tenant* const owner = &tenants_[opened->tenant];
  Keys::value_type* const of_key = key.key.empty() ? nullptr : &*keys_.try_emplace(key.key).first;
  if (of_key != nullptr) ++of_key->second.open;
  Entry& entry = sessions_[opened->id];
  entry = {std::move(session), owner, of_key, owner->order.insert(owner->order.end(), opened)};
  EnterIdle(entry);
  return opened;
}

absl::StatusOr<Session*> SessionTable::Find(const SessionId& id, absl::string_view tenant) {
  const auto found = sessions_.find(id);
  if (found != sessions_.end() && found->second.session->tenant == tenant &&
      !found->second.session->closed) {
    return found->second.session.get();
  }
  return NotFound(id);
}

absl::Status SessionTable::NotFound(const SessionId& id) {
  ErrorDetail detail;
  detail.reason = "SESSION_NOT_FOUND";
  detail.field = "session_id";
  return MakeError(absl::StatusCode::kNotFound,
                   absl::StrCat("session_id is \"", id.ToString(),
                                "\"; no such session is open here: it was closed, was idle for too "
                                "long, or never was."),
                   detail);
}

std::pair<absl::Time, uint64_t> SessionTable::ExpiryOf(const Session& session) {
  return {session.last_used + session.idle_timeout, session.use};
}

void SessionTable::EnterIdle(const Entry& entry) {
  Session* const session = entry.session.get();
  if (session->pinned) return;
  entry.tenant->idle.emplace(ExpiryOf(*session), session);
  if (entry.key != nullptr) entry.key->second.idle.emplace(ExpiryOf(*session), session);
  idle_.emplace(ExpiryOf(*session), session);
}

void SessionTable::LeaveIdle(const Entry& entry) {
  entry.tenant->idle.erase(ExpiryOf(*entry.session));
  if (entry.key != nullptr) entry.key->second.idle.erase(ExpiryOf(*entry.session));
  idle_.erase(ExpiryOf(*entry.session));
}

void SessionTable::Take(Session* session, LiveRequest* request) {
  LeaveIdle(sessions_.at(session->id));
  session->active = request;
}

void SessionTable::GiveBack(Session* session, absl::Time now) {
  const Entry& entry = sessions_.at(session->id);
  session->active = nullptr;
  session->last_used = now;
  session->use = ++uses_;
  entry.tenant->order.splice(entry.tenant->order.end(), entry.tenant->order, entry.place);
  EnterIdle(entry);
}

void SessionTable::Erase(Session* session) {
  const auto found = sessions_.find(session->id);
  Tenant* const owner = found->second.tenant;
  Keys::value_type* const of_key = found->second.key;
  LeaveIdle(found->second);
  if (of_key != nullptr && --of_key->second.open == 0) keys_.erase(of_key->first);
  owner->order.erase(found->second.place);
  if (owner->order.empty()) tenants_.erase(session->tenant);
  sessions_.erase(found);
}

void SessionTable::Pin(Session* session) {
  LeaveIdle(sessions_.at(session->id));
  session->pinned = true;
}

void SessionTable::Unpin(Session* session, absl::Time now) {
  session->pinned = false;
  if (session->active != nullptr) return;
  session->last_used = now;
  EnterIdle(sessions_.at(session->id));
}

absl::StatusOr<bool> SessionTable::Enter(Session* session, LiveRequest* request) {
  if (session->active == nullptr) {
    Take(session, request);
    return true;
  }
  if (session->waiters.size() >= static_cast<size_t>(limits_.max_waiting)) {
    return SessionBusy(session->waiters.size());
  }
  session->waiters.push_back(request);
  return false;
}

LiveRequest* SessionTable::Release(Session* session, absl::Time now) {
  if (session->closed) {
    Erase(session);
    return nullptr;
  }
  GiveBack(session, now);
  if (session->waiters.empty()) return nullptr;
  LiveRequest* const next = session->waiters.front();
  session->waiters.pop_front();
  Take(session, next);
  return next;
}

std::vector<LiveRequest*> SessionTable::Close(Session* session) {
  session->closed = true;
  std::vector<LiveRequest*> ended(session->waiters.begin(), session->waiters.end());
  if (session->active != nullptr) {
    ended.push_back(session->active);
  } else {
    Erase(session);
  }
  return ended;
}

std::vector<const Session*> SessionTable::Of(absl::string_view tenant) const {
  std::vector<const Session*> sessions;
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return sessions;
  for (const Session* session : found->second.order) {
    if (!session->closed) sessions.push_back(session);
  }
  return sessions;
}

void SessionTable::Expire(absl::Time now) {
  while (next_expiry() <= now) Erase(idle_.begin()->second);
}

absl::Time SessionTable::next_expiry() const {
  return idle_.empty() ? absl::InfiniteFuture() : idle_.begin()->first.first;
}

}  // namespace rivulet
