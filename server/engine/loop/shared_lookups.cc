// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/shared_lookups.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

// A tombstone stays so long: a repeated CloseSession, or a request that comes late, finds it.
constexpr absl::Duration kTombstone = absl::Minutes(10);
// A CloseSession against others that keep writing: each of them writes a few times a second.
constexpr int kCloseTries = 20;

absl::Status CannotClose() {
  ErrorDetail detail;
  detail.reason = "SESSION_BUSY";
  detail.field = "session_id";
  detail.retry_after = absl::Seconds(1);
  return MakeError(absl::StatusCode::kResourceExhausted,
                   "Other replicas keep writing to this session.", detail);
}

}  // namespace

SharedLookups::SharedLookups(SessionStore* store, const SessionTable* table,
                             SharedIdentity identity, Clock clock,
                             std::shared_ptr<LoopMailbox> mailbox)
    : store_(store),
      table_(table),
      identity_(std::move(identity)),
      clock_(std::move(clock)),
      mailbox_(std::move(mailbox)) {}

template <typename Result>
std::function<void(Result)> SharedLookups::For(RequestId id,
                                               std::function<void(Open*, const Result&)> take) {
  return Posting<Result>(mailbox_, [this, id, take = std::move(take)](const Result& result) {
    const auto open = open_.find(id);
    if (open != open_.end()) take(&open->second, result);
  });
}

void SharedLookups::End(const Open& open, absl::Status status) {
  const RequestId id = open.request->id;
  answered_.push_back({id, std::move(status)});
  open_.erase(id);
}

absl::Status SharedLookups::Check(const SessionRecord& record, const Request& request,
                                  const SessionId& id) const {
  const bool ours = !record.closed && record.tenant == request.account.tenant &&
                    record.model_name == identity_.model_name;
  return ours ? absl::OkStatus() : SessionTable::NotFound(id);
}

void SharedLookups::Close(Request* request) {
  Open& open = open_[request->id];
  open.request = request;
  open.claim = NewStoreClaim();
  store_->Read(request->session_ref->id.ToString(),
               For<Answer>(request->id, [this](Open* asking, const Answer& answer) {
                 OnCloseAnswer(asking, answer);
               }));
}

void SharedLookups::OnCloseAnswer(Open* open, const Answer& answer) {
  const SessionId& id = open->request->session_ref->id;
  if (!answer.ok()) return End(*open, StoreUnavailable(answer.status()));
  if (answer->kind == StoreAnswer::Kind::kMissing) return End(*open, SessionTable::NotFound(id));
  const StoreRecord& found = answer->found;
  const bool written = answer->kind == StoreAnswer::Kind::kDone && found.claim.empty();
  if (written || found.claim == open->claim) return End(*open, absl::OkStatus());
  absl::StatusOr<SessionRecord> record = DecodeRecord(found.bytes);
  if (!record.ok()) return End(*open, record.status());
  const absl::Status status = Check(*record, *open->request, id);
  if (!status.ok()) return End(*open, status);
  if (++open->tries > kCloseTries) return End(*open, CannotClose());
  ++record->epoch;
  record->closed = true;
  record->chunks.clear();
  StoreWrite write;
  write.session = id.ToString();
  write.expected = found.claim;
  write.record.claim = open->claim;
  write.record.bytes = EncodeRecord(*record);
  write.expiry = kTombstone;
  write.sets = SharedSetsOf(record->model_name, record->tenant, record->key);
  write.leaves_sets = true;
  store_->Write(std::move(write),
                For<Answer>(open->request->id, [this](Open* asking, const Answer& next) {
                  OnCloseAnswer(asking, next);
                }));
}

void SharedLookups::Look(Request* request) {
  const SessionLookup& lookup = *request->lookup();
  const RequestId request_id = request->id;
  open_[request_id].request = request;
  const auto read = [this, request_id](Open* open, const std::vector<SessionId>& ids) {
    open->reads = ids.size();
    open->found.resize(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      store_->Read(
          ids[i].ToString(),
          For<Answer>(request_id, [this, i, id = ids[i]](Open* asking, const Answer& answer) {
            OnRecord(asking, i, id, answer);
          }));
    }
  };
  if (lookup.session) return read(&open_[request_id], {*lookup.session});
  using Members = absl::StatusOr<std::vector<SessionStore::Member>>;
  const int64_t most =
      lookup.page_size > 0 ? lookup.page_size : std::numeric_limits<int32_t>::max();
  store_->List(SharedSetsOf(identity_.model_name, request->account.tenant, "")[1].name,
               static_cast<int64_t>(lookup.after), most,
               For<Members>(request_id, [this, read, most](Open* open, const Members& members) {
                 if (!members.ok()) return End(*open, StoreUnavailable(members.status()));
                 std::vector<SessionId> ids;
                 for (const SessionStore::Member& member : *members) {
                   if (const auto id = SessionId::Parse(member.session)) ids.push_back(*id);
                 }
                 if (std::ssize(*members) >= most) {
                   open->next = static_cast<uint64_t>(members->back().expires_ms);
                 }
                 if (!ids.empty()) return read(open, ids);
                 open->request->Show({}, open->next);
                 End(*open, absl::OkStatus());
               }));
}

void SharedLookups::OnRecord(Open* open, size_t index, const SessionId& id, const Answer& answer) {
  const bool one = open->request->lookup()->session.has_value();
  if (!answer.ok()) return End(*open, StoreUnavailable(answer.status()));
  absl::Status status = SessionTable::NotFound(id);
  if (answer->kind == StoreAnswer::Kind::kDone) {
    const absl::StatusOr<SessionRecord> record = DecodeRecord(answer->found.bytes);
    status = record.ok() ? Check(*record, *open->request, id) : record.status();
    if (status.ok()) {
      open->found[index] = InfoOf(id, *record, answer->found.lease > absl::ZeroDuration());
    }
  }
  // One that a list names may have been closed meanwhile.
  if (!status.ok() && (one || !absl::IsNotFound(status))) return End(*open, status);
  if (--open->reads > 0) return;
  std::vector<SessionInfo> infos;
  for (std::optional<SessionInfo>& info : open->found) {
    if (info) infos.push_back(*std::move(info));
  }
  open->request->Show(std::move(infos), open->next);
  End(*open, absl::OkStatus());
}

SessionInfo SharedLookups::InfoOf(const SessionId& id, const SessionRecord& record,
                                  bool busy) const {
  SessionInfo info;
  const absl::Time now = clock_();
  const Session* const here = table_->Get(id);
  if (here != nullptr && here->shared != nullptr && here->shared->known) {
    info = here->Info(now);  // for the memory of its states
  }
  info.id = id;
  info.position = record.position;
  info.hash = record.sequence_hash;
  info.seed = record.seed;
  info.marks = record.marks;
  info.idle_timeout = record.idle_timeout;
  info.busy = busy;
  // The writer's clock and this one may differ a little.
  info.idle = busy ? absl::ZeroDuration() : std::max(now - record.written, absl::ZeroDuration());
  return info;
}

}  // namespace rivulet
