// SPDX-License-Identifier: Apache-2.0
#include "server/engine/replicas/replicated_lookups.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

// Tries of a CloseSession while other replicas keep writing, each a few times a second.
constexpr size_t kCloseTries = 20;

// Reads under way for all lookups together: even while many sessions are listed, the store accepts
// other calls and answers them soon.
constexpr size_t kMostReads = 256;

absl::Status CannotClose() {
  ErrorDetail detail;
  detail.reason = "SESSION_BUSY";
  detail.field = "session_id";
  detail.retry_after = absl::Seconds(1);
  return MakeError(absl::StatusCode::kResourceExhausted,
                   "Other replicas keep writing to this session.", detail);
}

}  // namespace

ReplicatedLookups::ReplicatedLookups(SessionStore* store, const SessionTable* table,
                                     ReplicaIdentity identity, Clock clock,
                                     std::shared_ptr<LoopMailbox> mailbox, ReplicaTotals* totals)
    : store_(store),
      table_(table),
      identity_(std::move(identity)),
      clock_(std::move(clock)),
      mailbox_(std::move(mailbox)),
      totals_(totals) {}

void ReplicatedLookups::End(const Open& open, absl::Status status) {
  const RequestId id = open.request->id;
  answered_.push_back({id, std::move(status)});
  open_.erase(id);
}

void ReplicatedLookups::Close(LiveRequest* request) {
  open_[request->id].request = request;
  store_->Read(request->session_ref->id.ToString(),
               For<Answer>(request->id, [this](Open* asking, const Answer& answer) {
                 OnCloseAnswer(asking, answer);
               }));
}

void ReplicatedLookups::OnCloseAnswer(Open* open, const Answer& answer) {
  const SessionId& id = open->request->session_ref->id;
  if (!answer.ok()) return End(*open, StoreUnavailable(answer.status()));
  if (answer->kind == StoreAnswer::Kind::kMissing) return End(*open, SessionTable::NotFound(id));
  const StoreRecord& found = answer->found;
  const bool written = answer->kind == StoreAnswer::Kind::kDone && found.claim.empty();
  const bool ours = std::find(open->claims.begin(), open->claims.end(), found.claim) !=
                    open->claims.end();  // a write whose answer was lost
  if (written || ours) return End(*open, absl::OkStatus());
  absl::StatusOr<SessionRecord> record = DecodeRecord(found.bytes);
  if (!record.ok()) return End(*open, record.status());
  const absl::Status status = CheckExists(*record, identity_, open->request->account.tenant, id);
  if (!status.ok()) return End(*open, status);
  if (open->claims.size() >= kCloseTries) return End(*open, CannotClose());
  StoreWrite write = TombstoneOf(id, *std::move(record), table_->limits());
  write.expected = found.claim;
  open->claims.push_back(write.record.claim);
  store_->Write(std::move(write),
                For<Answer>(open->request->id, [this](Open* asking, const Answer& next) {
                  OnCloseAnswer(asking, next);
                }));
}

void ReplicatedLookups::Look(LiveRequest* request) {
  const SessionLookup& lookup = *request->lookup();
  const RequestId request_id = request->id;
  open_[request_id].request = request;
  if (lookup.session) return Read(&open_[request_id], {*lookup.session});
  using Members = absl::StatusOr<std::vector<SessionStore::Member>>;
  const int64_t most =
      lookup.page_size > 0 ? lookup.page_size : std::numeric_limits<int32_t>::max();
  store_->List(ReplicatedSetsOf(identity_.model_name, request->account.tenant, "")[1].name,
               static_cast<int64_t>(lookup.after), most,
               For<Members>(request_id, [this, most](Open* open, const Members& members) {
                 if (!members.ok()) return End(*open, StoreUnavailable(members.status()));
                 std::vector<SessionId> ids;
                 for (const SessionStore::Member& member : *members) {
                   if (const auto id = SessionId::Parse(member.session)) ids.push_back(*id);
                 }
                 if (std::ssize(*members) >= most) {
                   open->next = static_cast<uint64_t>(members->back().expires_ms);
                 }
                 if (!ids.empty()) return Read(open, std::move(ids));
                 open->request->lookup()->show({}, open->next);
                 End(*open, absl::OkStatus());
               }));
}

void ReplicatedLookups::Read(Open* open, std::vector<SessionId> sessions) {
  open->found.resize(sessions.size());
  open->sessions = std::move(sessions);
  reading_.push_back(open->request->id);
  BeginReads();
}

// One read of each request, then the next of each: no request waits for all of a long list.
void ReplicatedLookups::BeginReads() {
  while (reads_ < kMostReads && !reading_.empty()) {
    const RequestId id = reading_.front();
    reading_.pop_front();
    const auto found = open_.find(id);
    if (found == open_.end()) continue;
    Open* const open = &found->second;
    const size_t index = open->begun++;
    if (open->begun < open->sessions.size()) reading_.push_back(id);
    ++reads_;
    store_->Read(open->sessions[index].ToString(),
                 Posting<Answer>(mailbox_, [this, id, index](const Answer& answer) {
                   --reads_;
                   totals_->CountCall(answer.status());
                   const auto asking = open_.find(id);
                   if (asking != open_.end()) OnRecord(&asking->second, index, answer);
                   BeginReads();
                 }));
  }
}

void ReplicatedLookups::OnRecord(Open* open, size_t index, const Answer& answer) {
  const SessionId& id = open->sessions[index];
  const bool one = open->request->lookup()->session.has_value();
  absl::Status status = SessionTable::NotFound(id);
  if (!answer.ok()) {
    status = StoreUnavailable(answer.status());
    if (!IsOfRecord(status)) return End(*open, status);
  }
  if (answer.ok() && answer->kind == StoreAnswer::Kind::kDone) {
    const absl::StatusOr<SessionRecord> record = DecodeRecord(answer->found.bytes);
    status = record.ok() ? CheckExists(*record, identity_, open->request->account.tenant, id)
                         : record.status();
    if (status.ok()) {
      open->found[index] = InfoOf(id, *record, answer->found.lease > absl::ZeroDuration());
    }
  }
  // A session that a list names may have been closed meanwhile, or cannot be read here.
  if (!status.ok() && one) return End(*open, status);
  if (++open->ended < open->sessions.size()) return;
  std::vector<SessionInfo> infos;
  for (std::optional<SessionInfo>& info : open->found) {
    if (info) infos.push_back(*std::move(info));
  }
  open->request->lookup()->show(std::move(infos), open->next);
  End(*open, absl::OkStatus());
}

SessionInfo ReplicatedLookups::InfoOf(const SessionId& id, const SessionRecord& record,
                                      bool busy) const {
  SessionInfo info;
  const absl::Time now = clock_();
  const Session* const here = table_->Get(id);
  if (here != nullptr && here->replicated != nullptr && here->replicated->life.known()) {
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
