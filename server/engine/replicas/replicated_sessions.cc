// SPDX-License-Identifier: Apache-2.0
#include "server/engine/replicas/replicated_sessions.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "model/base/error.h"
#include "server/engine/sequences/live_session_command.h"

namespace rivulet {
namespace {

using Kind = StoreAnswer::Kind;
using Life = CopyLife::State;

absl::Status Moved() {
  ErrorDetail detail;
  detail.reason = "SESSION_MOVED";
  detail.field = "session_id";
  return MakeError(absl::StatusCode::kAborted, "Another replica has taken the session over.",
                   detail);
}

// The session has everything that the record has.
bool Contains(const Session& session, const SessionRecord& record) {
  return record.position <= session.position() &&
         session.history.HashAt(record.position) == record.sequence_hash;
}

ReplicatedCopy* CopyOf(Session* session) {
  if (session->replicated == nullptr) session->replicated = std::make_shared<ReplicatedCopy>();
  return session->replicated.get();
}

bool IsUnconfirmed(const ReplicatedCopy& copy, const std::string& claim) {
  const std::vector<std::string>& claims = copy.unconfirmed_claims;
  return claim == copy.sent.version.claim ||
         std::find(claims.begin(), claims.end(), claim) != claims.end();
}

void NoteChanges(Session* session) {
  ReplicatedCopy* const copy = session->replicated.get();
  const int64_t unchanged = session->history.TakeUnchanged();
  copy->stored.prefix_tokens = std::min(copy->stored.prefix_tokens, unchanged);
  copy->sent.version.prefix_tokens = std::min(copy->sent.version.prefix_tokens, unchanged);
  const auto changed = [&](int64_t fed) { return session->Seen(fed) > unchanged; };
  std::erase_if(copy->published, changed);
  if (changed(copy->publishing)) copy->publishing = 0;
}

// The number of the session's tokens here that the store has.
int64_t SafePosition(const ReplicatedCopy& copy) {
  return std::min(copy.stored.prefix_tokens, copy.stored.record.position);
}

// `record` is the store's record, and the session equals it or has grown beyond it.
void SetStored(Session* session, SessionRecord record, std::string claim) {
  ReplicatedCopy* const copy = session->replicated.get();
  NoteChanges(session);
  record.owns_chunks &= copy->stored.record.owns_chunks;  // a failover forgets no fork
  copy->stored.prefix_tokens =
      Contains(*session, record)
          ? record.position
          : std::min(copy->stored.prefix_tokens,
                     CommonTokens(record.chunks, copy->stored.record.chunks));
  copy->stored.record = std::move(record);
  copy->stored.claim = std::move(claim);
}

// No session uses the chunks of `before` that `after` does not use: drops them. REQUIRES: both own
// their chunks.
void DropUnused(const SessionRecord& before, const SessionRecord& after, StoreWrite* write) {
  for (const ChunkUse& use : before.chunks) {
    const bool used = std::any_of(after.chunks.begin(), after.chunks.end(),
                                  [&](const ChunkUse& other) { return other.id == use.id; });
    if (!used) write->dropped_chunks.push_back(use.id);
  }
}

bool Grows(RequestKind kind) {
  return kind == RequestKind::kGenerate || kind == RequestKind::kScore ||
         kind == RequestKind::kAppend;
}

// The client gave the session's hash, and the copy matches: as far as this client knows, no other
// replica has continued the session.
bool HashFits(const Session& session, const SessionRef& ref) {
  return ref.hash == session.history.hash() || WasAsExpected(ref, session);
}

bool IsAsExpected(const Session& session, const LiveRequest& request) {
  return request.claim.knows_session || HashFits(session, *request.session_ref);
}

// Whether another replica has the session. The store's clock may have gone back since the lease was
// written, and then the lease seems to last too long. The replica that has the session renews the
// lease with a new claim, so a claim that stays for the length of a lease, by the steady clock
// here, has ended. If there are too many leases to remember all, the wait begins again.
bool IsLeased(const SessionId& session, const StoreRecord& found, absl::Duration now,
              absl::Duration lease, SeenLeases* seen) {
  constexpr size_t kMostSeen = 4096;
  if (found.lease <= absl::ZeroDuration()) {
    seen->erase(session);
    return false;
  }
  if (seen->size() >= kMostSeen && !seen->contains(session)) seen->clear();
  SeenLease& known = (*seen)[session];
  if (known.claim != found.claim) known = {found.claim, now};
  return now - known.since < lease;
}

// Whether the copy may be written into a store that was emptied.
bool MayBeWrittenAnew(const Session& session, absl::Duration now) {
  const ReplicatedCopy& copy = *session.replicated;
  if (now < copy.leased_until) return true;
  if (copy.claiming != nullptr) {
    const SessionRef& ref = *copy.claiming->session_ref;
    if (ref.hash == session.history.hash() || FollowsAbandoned(ref, session)) return true;
    // The client knows less than the copy: the rest must come from its own request, as in
    // PositionIn.
    return WasAsExpected(ref, session) &&
           (ref.repeated ||
            *ref.position + copy.claiming->account.num_tokens == session.position());
  }
  return session.active != nullptr && copy.vouched;
}

// `request` repeats the request that the lease is for.
bool IsRepetition(const LiveRequest& request, const SessionRecord& record) {
  return request.session_ref->repeated && request.claim.identity &&
         record.request == request.claim.identity;
}

}  // namespace

bool CopyLife::Allowed(State from, State to) {
  switch (to) {
    case State::kUnread:
      return true;
    case State::kNew:
    case State::kTakenOver:
      return from == State::kUnread;
    case State::kOwn:
      return from == State::kNew || from == State::kTakenOver || from == State::kClaimed;
    case State::kClaimed:
      return from == State::kOwn;
  }
  return false;
}

void CopyLife::Go(State to) {
  if (!Allowed(state_, to)) {
    std::fprintf(stderr, "CopyLife: a step that is not allowed (state %d to %d)\n",
                 static_cast<int>(state_), static_cast<int>(to));
    std::abort();
  }
  state_ = to;
}

int CountUnwritten(const SessionTable& table) {
  int count = 0;
  table.ForEach([&](const Session* session) {
    const ReplicatedCopy* const copy = session->replicated.get();
    if (copy == nullptr || !copy->life.known()) return;
    count += copy->wants_write || copy->call == ReplicatedCopy::Call::kWrite ? 1 : 0;
  });
  return count;
}

ReplicatedSessions::ReplicatedSessions(SessionStore* store, SessionTable* table,
                                       ReplicatedStates* states, ReplicaIdentity identity,
                                       Clock clock, std::shared_ptr<LoopMailbox> mailbox,
                                       ReplicaTotals* totals)
    : store_(store),
      table_(table),
      states_(states),
      identity_(std::move(identity)),
      clock_(std::move(clock)),
      mailbox_(std::move(mailbox)),
      totals_(totals) {}

void ReplicatedSessions::SetDue(Session* session, absl::Duration due) {
  ReplicatedCopy* const copy = session->replicated.get();
  if (copy->owes != 0) due = std::min(due, ends_.at(copy->owes)->until);
  if (copy->due == due) return;
  due_.erase({copy->due, session->id});
  copy->due = due;
  if (due < absl::InfiniteDuration()) due_.insert({due, session->id});
}

absl::Duration ReplicatedSessions::DueIn() const {
  if (!events_.empty()) return absl::ZeroDuration();
  return due_.empty() ? absl::InfiniteDuration() : due_.begin()->first - clock_.Steady();
}

// Calls of the loop.

void ReplicatedSessions::EvictFor(int more) {
  const auto may_go = [](const Session& session) {
    const ReplicatedCopy* const copy = session.replicated.get();
    return copy == nullptr || (copy->call == ReplicatedCopy::Call::kNone && !copy->wants_write);
  };
  while (table_->size() + more > table_->limits().max_open_sessions && table_->EvictIdle(may_go)) {
  }
}

void ReplicatedSessions::Owe(Session* session, uint64_t end) {
  session->replicated->owes = end;
  session->replicated->wants_write = true;
  table_->Pin(session);
}

void ReplicatedSessions::Claim(LiveRequest* request) {
  CopyOf(request->session)->claiming = request;
  Advance(request->session);
}

void ReplicatedSessions::Leave(const LiveRequest& request) {
  Session* const session = request.session;
  if (session == nullptr || session->replicated == nullptr) return;
  ReplicatedCopy* const copy = session->replicated.get();
  if (copy->claiming == &request) copy->claiming = nullptr;
  if (!copy->life.claimed() || session->active != &request) return;
  copy->life.Go(Life::kOwn);
  copy->wants_write = true;  // gives the lease back
  Advance(session);
}

void ReplicatedSessions::NoteTokens(Session* session) {
  ReplicatedCopy* const copy = session->replicated.get();
  const SessionRecord& last =
      copy->call == ReplicatedCopy::Call::kWrite ? copy->sent.version.record : copy->stored.record;
  if (!copy->life.claimed() || session->position() - last.position < options_.tokens_a_write)
    return;
  copy->wants_write = true;
  Advance(session);
}

void ReplicatedSessions::End(std::unique_ptr<LiveRequest> request, Session* session,
                             const std::vector<Session*>& opened) {
  auto end = std::make_unique<HeldEnd>();
  end->request = std::move(request);
  end->session = session;
  // A new session must be in the store before its client learns of it.
  end->until = opened.empty() ? clock_.Steady() + options_.end_wait : absl::InfiniteDuration();
  std::vector<Session*> written = opened;
  ReplicatedCopy* const parent = session == nullptr ? nullptr : CopyOf(session);
  if (parent != nullptr) NoteChanges(session);
  for (Session* const session_opened : opened) {
    end->opened.push_back(session_opened->id);
    ReplicatedCopy* const copy = CopyOf(session_opened);
    copy->life.Go(Life::kNew);
    session_opened->history.TakeUnchanged();
    // A fork uses the chunks of its parent if the parent's record says that they are shared; else,
    // for example if the claim of this request got no answer, it has its own chunks.
    copy->stored.record.owns_chunks = parent == nullptr || parent->stored.record.owns_chunks;
    if (!copy->stored.record.owns_chunks) {
      copy->stored.record.chunks = parent->stored.record.chunks;
      copy->stored.prefix_tokens =
          std::min(parent->stored.prefix_tokens, session_opened->position());
    }
    if (parent == nullptr) continue;
    for (const int64_t fed : parent->published) {
      if (fed <= session_opened->total()) copy->published.push_back(fed);
    }
  }
  if (parent != nullptr) {
    end->other_numerics_id = std::exchange(parent->other_numerics_id, "");
    if (parent->life.claimed()) parent->life.Go(Life::kOwn);
    parent->awaits_end_event = true;
    if (parent->life.known() && !session->closed) {
      written.push_back(session);
    } else if (!session->closed && end->request->status.ok()) {
      end->request->status = parent->lost;  // the session went while the request ran
    }
  }
  end->writes = static_cast<int>(written.size());
  if (written.empty()) {
    events_.push_back({.kind = Event::Kind::kEnded, .end = std::move(end)});
    return;
  }
  const uint64_t number = ++last_end_;
  ends_.emplace(number, std::move(end));
  for (Session* const changed : written) Owe(changed, number);
  EvictFor(0);  // not the opened sessions: they are pinned
  for (Session* const changed : written) {
    SetDue(changed, absl::InfiniteDuration());
    Advance(changed);
  }
}

void ReplicatedSessions::NotePublished(const ReplicatedStates::Published& state) {
  Session* const session = table_->Get(state.session);
  ReplicatedCopy* const copy = session == nullptr ? nullptr : session->replicated.get();
  if (copy == nullptr || !copy->life.known() || session->closed) return;
  if (!state.fed.ok()) {
    copy->publishing = 0;  // the next end of a request tries it again
    return;
  }
  NoteChanges(session);
  const bool is_new = copy->published.empty() || copy->published.back() < *state.fed;
  const int64_t seen = session->Seen(*state.fed);
  const bool fits =
      seen <= session->position() && session->history.HashAt(seen) == state.sequence_hash;
  if (!is_new || !fits) return;
  copy->published.push_back(*state.fed);
  if (copy->published.size() > kMostPublished) copy->published.erase(copy->published.begin());
  copy->wants_write |= copy->claiming == nullptr;
  Advance(session);
}

std::vector<std::unique_ptr<HeldEnd>> ReplicatedSessions::Abandon() {
  std::vector<std::unique_ptr<HeldEnd>> ends;
  for (Event& event : events_) {
    if (event.kind == Event::Kind::kEnded) ends.push_back(std::move(event.end));
  }
  events_.clear();
  for (auto& [number, end] : ends_) {
    std::optional<Durability>& durability = end->request->claim.durability;
    if (!durability) durability.emplace();
    durability->complete = false;
    if (end->session != nullptr) durability->position = SafePosition(*end->session->replicated);
    ends.push_back(std::move(end));
  }
  ends_.clear();
  return ends;
}

// Calls of the store.

void ReplicatedSessions::Advance(Session* session) {
  ReplicatedCopy* const copy = session->replicated.get();
  if (copy->call != ReplicatedCopy::Call::kNone) return;
  if (copy->life.known() && copy->claiming != nullptr) return Write(session, true);
  if (copy->claiming != nullptr) {
    return store_->Read(session->id.ToString(),
                        Call(session, ReplicatedCopy::Call::kRead, &ReplicatedSessions::OnRead));
  }
  if (copy->life.known() && copy->wants_write) Write(session, copy->life.claimed());
}

void ReplicatedSessions::ReadChunks(Session* session) {
  std::vector<std::string> ids;
  for (const ChunkUse& use : session->replicated->found.record.chunks) ids.push_back(use.id);
  store_->ReadChunks(std::move(ids),
                     Call(session, ReplicatedCopy::Call::kChunks, &ReplicatedSessions::OnChunks));
}

void ReplicatedSessions::Write(Session* session, bool lease) {
  ReplicatedCopy* const copy = session->replicated.get();
  NoteChanges(session);
  StoreWrite write;
  SessionRecord record = RecordOf(*session, identity_, clock_());
  record.epoch = copy->stored.record.epoch + 1;
  record.chunks = FirstTokens(copy->stored.record.chunks, copy->stored.prefix_tokens);
  for (const ChunkUse& use : record.chunks) write.kept_chunks.push_back(use.id);
  CoverTokens(session->history, session->tenant, &record.chunks, &write.chunks);
  const LiveRequest* const running = copy->claiming != nullptr ? copy->claiming : session->active;
  const bool forks = running != nullptr && running->kind == RequestKind::kForkSession;
  record.owns_chunks = copy->stored.record.owns_chunks && !forks;
  if (record.owns_chunks) DropUnused(copy->stored.record, record, &write);
  if (lease && running != nullptr) record.request = running->claim.identity;
  record.states = copy->published;
  write.session = session->id.ToString();
  write.expected = copy->stored.claim;
  write.record.claim = NewStoreClaim();
  write.record.bytes = EncodeRecord(record);
  write.record.lease = lease ? options_.lease : absl::ZeroDuration();
  write.expiry = session->idle_timeout + options_.lease;
  // A session that the store has lost counts again, even beyond the limits.
  const bool is_new = copy->life.Is(Life::kNew);
  write.sets = SetsFor(identity_, *session, table_->limits(), is_new);
  // A request that has begun may write all its tokens.
  const bool grows = is_new || (copy->claiming != nullptr && Grows(copy->claiming->kind));
  write.account = AccountOf(session->tenant, table_->limits(), grows);
  const int64_t position = record.position;
  copy->sent = {.version = {std::move(record), write.record.claim, position},
                .lease = lease,
                .has_end = copy->owes != 0,
                .at = clock_.Steady()};
  copy->wants_write = false;
  store_->Write(std::move(write),
                Call(session, ReplicatedCopy::Call::kWrite, &ReplicatedSessions::OnWrite));
  SetDue(session, absl::InfiniteDuration());
}

// Answers.

std::vector<ReplicatedSessions::Event> ReplicatedSessions::Collect() {
  mailbox_->Run();
  const absl::Duration now = clock_.Steady();
  while (!due_.empty() && due_.begin()->first <= now) {
    const SessionId id = due_.begin()->second;
    due_.erase(due_.begin());
    Session* const session = table_->Get(id);
    if (session == nullptr || session->replicated == nullptr) continue;
    session->replicated->due = absl::InfiniteDuration();
    TakeDue(session);
  }
  std::vector<Event> events(std::make_move_iterator(events_.begin()),
                            std::make_move_iterator(events_.end()));
  events_.clear();
  return events;
}

void ReplicatedSessions::TakeDue(Session* session) {
  ReplicatedCopy* const copy = session->replicated.get();
  if (copy->owes != 0 && ends_.at(copy->owes)->until <= clock_.Steady()) {
    DecideEnd(session, /*durable=*/false, absl::OkStatus());
  }
  if (copy->life.claimed()) copy->wants_write = true;  // the lease
  Advance(session);
  if (copy->call == ReplicatedCopy::Call::kNone && copy->wants_write)
    SetDue(session, clock_.Steady() + options_.retry);
}

void ReplicatedSessions::OnWrite(Session* session, const Answer& answer) {
  ReplicatedCopy* const copy = session->replicated.get();
  // Another replica has written the record, and this one cannot read it.
  if (IsOfRecord(answer.status())) return Lose(session, answer.status());
  if (absl::IsDataLoss(answer.status()) && !copy->stored.record.chunks.empty()) {
    // The store has lost chunks that the session has: they are written again.
    ++totals_->rewritten;
    copy->stored.record.chunks.clear();
    copy->stored.prefix_tokens = 0;
    copy->wants_write |= copy->claiming == nullptr;
    return Advance(session);
  }
  if (!answer.ok()) {
    copy->unconfirmed_claims.push_back(copy->sent.version.claim);
    return OnUnavailable(session, answer.status());
  }
  if (answer->kind != Kind::kDone) copy->sent.has_end = false;  // the next write may have it
  switch (answer->kind) {
    case Kind::kDone:
      copy->store_id = answer->store_id;
      return OnWritten(session);
    case Kind::kClaimMismatch:
      copy->store_id = answer->store_id;
      return OnFound(session, answer->found);
    case Kind::kMissing:
      return OnMissing(session, answer->store_id);
    case Kind::kFull:
      return Lose(session, SetFull(answer->full_set, answer->members));
    case Kind::kNoBytes:
      return OnNoBytes(session, AccountFull(answer->members, table_->limits()));
  }
}

void ReplicatedSessions::OnNoBytes(Session* session, const absl::Status& status) {
  ReplicatedCopy* const copy = session->replicated.get();
  // A session that was taken over may have grown on its old replica: it must not be written.
  if (copy->life.unwritten()) return Lose(session, status);
  copy->wants_write = true;  // without the request, the session may fit
  if (copy->claiming != nullptr) Claimed(session, status);
  Advance(session);
}

void ReplicatedSessions::OnWritten(Session* session) {
  ReplicatedCopy* const copy = session->replicated.get();
  ++totals_->writes;
  NoteChanges(session);
  copy->stored = copy->sent.version;  // `sent` keeps the last version, too
  copy->leased_until =
      copy->sent.lease ? copy->sent.at + options_.lease : -absl::InfiniteDuration();
  copy->unconfirmed_claims.clear();
  if (copy->life.unwritten()) copy->life.Go(Life::kOwn);
  if (copy->claiming != nullptr && copy->sent.lease && copy->life.Is(Life::kOwn)) {
    copy->life.Go(Life::kClaimed);
    Claimed(session, absl::OkStatus());
  } else if (copy->sent.lease && !copy->life.claimed()) {
    copy->wants_write = true;  // the request has left: give the lease back
  }
  if (copy->sent.has_end) DecideEnd(session, /*durable=*/true, absl::OkStatus());
  if (copy->life.claimed()) SetDue(session, clock_.Steady() + options_.renewal);
  Advance(session);
}

void ReplicatedSessions::OnRead(Session* session, const Answer& answer) {
  if (!answer.ok()) return OnUnavailable(session, answer.status());
  if (answer->kind == Kind::kMissing) return OnMissing(session, answer->store_id);
  session->replicated->store_id = answer->store_id;
  OnFound(session, answer->found);
}

void ReplicatedSessions::OnFound(Session* session, const StoreRecord& found) {
  ReplicatedCopy* const copy = session->replicated.get();
  absl::StatusOr<SessionRecord> record = DecodeRecord(found.bytes);
  if (!record.ok()) return Lose(session, record.status());
  const bool own = IsUnconfirmed(*copy, found.claim);
  // A failover has lost our writes.
  const bool behind = copy->life.known() && record->epoch < copy->stored.record.epoch &&
                      !record->closed && Contains(*session, *record);
  const bool leased =
      !own && IsLeased(session->id, found, clock_.Steady(), options_.lease, &leases_);
  if (copy->life.known() && (own || (behind && !(leased && copy->claiming != nullptr)))) {
    if (!own) ++totals_->rewritten;
    SetStored(session, *std::move(record), found.claim);
    copy->wants_write |= copy->claiming == nullptr;
    return Advance(session);
  }
  const absl::Status status = CheckRecord(*record, identity_, *session);
  if (!status.ok()) return Lose(session, status);
  if (copy->claiming == nullptr) {
    const bool saved = SafePosition(*copy) == session->position();
    if (!saved || session->active != nullptr) ++totals_->lost;
    return Lose(session, Moved());
  }
  copy->life.Go(Life::kUnread);
  if (leased && !IsRepetition(*copy->claiming, *record)) {
    return SetDue(session, clock_.Steady() + std::min(found.lease, options_.look));
  }
  const int64_t position = record->position;
  copy->found = {*std::move(record), found.claim, position};
  ReadChunks(session);
}

void ReplicatedSessions::OnChunks(Session* session, const Chunks& chunks) {
  ReplicatedCopy* const copy = session->replicated.get();
  if (!chunks.ok()) return OnUnavailable(session, chunks.status());
  const bool missing = std::any_of(chunks->begin(), chunks->end(),
                                   [](const std::string& bytes) { return bytes.empty(); });
  // Since the record was read, its owner may have replaced the chunks, or the store was emptied.
  if (missing && std::exchange(copy->missed_claim, copy->found.claim) != copy->found.claim) {
    return Advance(session);
  }
  SessionRecord& found = copy->found.record;
  TokenHistory history;
  absl::Status status;
  for (size_t i = 0; i < found.chunks.size() && status.ok(); ++i) {
    status = AppendTokens(found.chunks[i], (*chunks)[i], session->tenant, &history);
  }
  if (status.ok() && history.hash() != found.sequence_hash) {
    status = DamagedRecord("its tokens are not those that its record names.");
  }
  const auto tokens = history.tokens();
  const bool in_vocabulary = std::all_of(tokens.begin(), tokens.end(), [&](int32_t token) {
    return token >= 0 && token < identity_.vocab_size;
  });
  if (status.ok() && !in_vocabulary) {
    status = DamagedRecord("it has a token that the model does not have.");
  }
  if (!status.ok()) return Lose(session, status);
  ++totals_->takeovers;
  session->BecomeCopyOf(std::move(history), found.marks);
  session->seed = found.seed;
  session->idle_timeout = found.idle_timeout;
  session->abandoned_from = found.abandoned_from;
  session->key.key = found.key;
  session->history.TakeUnchanged();
  copy->published = found.states;
  copy->publishing = 0;
  if (found.numerics_id != identity_.numerics_id) {
    copy->published.clear();  // states of another numerics id
    copy->other_numerics_id = found.numerics_id;
  }
  states_->Adopt(session, copy->published);
  copy->stored = copy->found;
  copy->life.Go(Life::kTakenOver);
  copy->wants_write = false;
  copy->unconfirmed_claims.clear();
  Advance(session);
}

void ReplicatedSessions::OnMissing(Session* session, const std::string& store_id) {
  ReplicatedCopy* const copy = session->replicated.get();
  const absl::Status not_found = SessionTable::NotFound(session->id);
  if (!copy->life.known() || store_id == copy->store_id) return Lose(session, not_found);
  if (!MayBeWrittenAnew(*session, clock_.Steady())) {
    if (copy->life.claimed()) return Lose(session, not_found);
    if (copy->owes != 0) DecideEnd(session, /*durable=*/false, absl::OkStatus());
    // The session stays here: the next request may give its hash.
    if (copy->claiming != nullptr) Claimed(session, not_found);
    return;
  }
  copy->store_id = store_id;  // the store was emptied: everything is written again
  ++totals_->rewritten;
  copy->stored.record.chunks.clear();
  copy->stored.prefix_tokens = 0;
  copy->stored.claim.clear();
  copy->wants_write |= copy->claiming == nullptr;
  Advance(session);
}

void ReplicatedSessions::OnUnavailable(Session* session, const absl::Status& status) {
  ReplicatedCopy* const copy = session->replicated.get();
  if (copy->life.Is(Life::kNew) || absl::IsDataLoss(status) || IsOfRecord(status)) {
    return Lose(session, StoreUnavailable(status));
  }
  const bool usable =
      copy->claiming != nullptr && copy->life.known() && IsAsExpected(*session, *copy->claiming);
  // The replica that has the session may have grown it beyond its record: a later write of this
  // replica must not take the session away.
  if (copy->life.Is(Life::kTakenOver)) {
    if (!usable) return Lose(session, StoreUnavailable(status));
    copy->life.Go(Life::kOwn);
  }
  if (copy->claiming != nullptr) {
    Claimed(session, usable ? absl::OkStatus() : StoreUnavailable(status));
  }
  if (copy->sent.has_end) DecideEnd(session, /*durable=*/false, absl::OkStatus());
  if (!copy->life.known()) return;
  copy->wants_write = true;
  SetDue(session, clock_.Steady() + options_.retry);
}

void ReplicatedSessions::Claimed(Session* session, const absl::Status& status) {
  LiveRequest* const request = std::exchange(session->replicated->claiming, nullptr);
  session->replicated->vouched = status.ok() && HashFits(*session, *request->session_ref);
  events_.push_back({.kind = Event::Kind::kClaimed, .request = request->id, .status = status});
}

void ReplicatedSessions::Lose(Session* session, const absl::Status& status) {
  ReplicatedCopy* const copy = session->replicated.get();
  const bool running = session->active != nullptr && session->active->life.begun();
  copy->lost = status;
  copy->life.Go(Life::kUnread);
  copy->wants_write = false;
  if (copy->owes != 0) DecideEnd(session, /*durable=*/false, status);
  if (copy->claiming != nullptr) return Claimed(session, status);
  if (running) {
    events_.push_back(
        {.kind = Event::Kind::kLost, .request = session->active->id, .status = status});
  } else if (session->active == nullptr) {
    events_.push_back({.kind = Event::Kind::kForgotten, .session = session->id});
  }
}

void ReplicatedSessions::DecideEnd(Session* session, bool durable, const absl::Status& status) {
  const uint64_t number = std::exchange(session->replicated->owes, 0);
  session->replicated->sent.has_end = false;
  table_->Unpin(session, clock_());
  HeldEnd* const held = ends_.at(number).get();
  LiveRequest* const request = held->request.get();
  if (!status.ok() && request->status.ok()) request->status = status;
  if (!request->claim.durability) request->claim.durability.emplace();
  if (!durable) request->claim.durability->complete = false;
  request->claim.durability->other_numerics_id = held->other_numerics_id;
  // The answer of a rewind cannot say that it is not durable. If repeated, it changes nothing more.
  if (!durable && request->kind == RequestKind::kRewindSession && request->status.ok()) {
    request->status = StoreUnavailable(absl::UnavailableError("no answer in time"));
  }
  if (session == held->session)
    request->claim.durability->position = SafePosition(*session->replicated);
  if (--held->writes > 0) return;
  for (const SessionId& id : held->opened) {
    Session* const opened = request->status.ok() ? nullptr : table_->Get(id);
    if (opened != nullptr && opened->replicated->life.known()) Discard(opened);
  }
  events_.push_back(
      {.kind = Event::Kind::kEnded, .end = std::move(ends_.extract(number).mapped())});
}

void ReplicatedSessions::Discard(Session* session) {
  SessionRecord record = RecordOf(*session, identity_, clock_());
  record.chunks = session->replicated->stored.record.chunks;
  record.owns_chunks = session->replicated->stored.record.owns_chunks;
  StoreWrite write = TombstoneOf(session->id, std::move(record), table_->limits());
  write.expected = session->replicated->stored.claim;
  store_->Write(std::move(write), [](const Answer&) {});  // else it expires
  session->replicated->life.Go(Life::kUnread);
  session->replicated->wants_write = false;
  events_.push_back({.kind = Event::Kind::kForgotten, .session = session->id});
}

}  // namespace rivulet
