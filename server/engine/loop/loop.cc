// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/loop.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "server/engine/loop/activity.h"
#include "server/engine/loop/host_memory.h"

namespace rivulet {
namespace {

absl::Status EndedBy(absl::StatusCode code, absl::string_view reason, absl::string_view message) {
  ErrorDetail detail;
  detail.reason = std::string(reason);
  return MakeError(code, message, detail);
}

ScheduleOptions ScheduleOptionsOf(const EngineOptions& options, const BackendLimits& limits) {
  ScheduleOptions schedule;
  schedule.prefill_tokens_idle = options.prefill_tokens_idle > 0 ? options.prefill_tokens_idle
                                                                 : limits.preferred_prefill_tokens;
  schedule.prefill_tokens_busy = options.prefill_tokens_busy > 0
                                     ? options.prefill_tokens_busy
                                     : std::max(1, schedule.prefill_tokens_idle / 4);
  return schedule;
}

AdmissionLimits AdmissionLimitsOf(const EngineOptions& options, const BackendLimits& backend) {
  const int slots = backend.num_slots;
  AdmissionLimits limits;
  limits.slots = slots;
  limits.max_tenant_slots = options.max_tenant_slots > 0 ? options.max_tenant_slots : slots;
  limits.max_begun = StateMemoryOf(options.max_host_bytes, backend).begun;
  limits.quantum = options.preempt_after_runs;
  return limits;
}

// Notes that tokens of a request arrive at its reply.
void NoteDelivery(absl::Time now, LiveRequest::Times* times, EngineMeters* meters) {
  if (!times->delivered) {
    meters->NoteFirstToken(*times->first_token - times->arrival);
  } else if (*times->delivered != now) {  // else by another sample of the same request
    meters->NoteReplyGap(now - *times->delivered);
  }
  times->delivered = now;
}

// The error that ends a request which changes nothing. Without a claim the error may come from an
// old copy, and so says nothing about the session.
absl::Status OfClaim(const LiveRequest& request, const absl::Status& status) {
  const Session* const session = request.session;
  const bool unclaimed =
      session != nullptr && session->replicated != nullptr && !session->replicated->life.claimed();
  return status.ok() || !unclaimed ? status : StoreUnavailable(status);
}

// Hands a request over with its end, which frees its places in the queue.
void HandEnd(std::unique_ptr<LiveRequest> request, std::vector<RequestQueue::Ended>* ended,
             Emitter* emitter) {
  const LiveRequest::Account& account = request->account;
  ended->push_back({account.tenant, account.places, account.queued_tokens()});
  emitter->PutEnd(std::move(request));
}

// Notes that a request is handed over which has waited for the writes of its sessions.
void NoteHeldEnd(const LiveRequest& request, absl::Time now, EngineMeters* meters,
                 ReplicaTotals* totals) {
  if (!request.claim.durability) return;  // there was nothing to write
  meters->NoteSessionSave(now - request.times.end);
  if (request.status.ok() && !request.claim.durability->complete) ++totals->not_durable;
}

// `request` continues from `found`; its sequences will share the kept segments.
absl::Status StartFrom(LiveRequest* request, const FoundState& found, SessionTable* table,
                       absl::Time now) {
  request->kept_segments = found.segments();
  return request->StartFrom(found.checkpoint(), table, now);
}

}  // namespace

std::optional<int> ReplicaSharing::Save(const SessionTable& table, bool busy, absl::Duration now) {
  if (busy && now < save_again) return std::nullopt;
  save_again = now + absl::Milliseconds(100);
  std::vector<std::pair<Session*, KeptCheckpoint>> worth;
  table.ForEach([&](Session* session) {
    if (session->active != nullptr || session->closed) return;
    KeptCheckpoint latest = states.WorthPublishing(*session);
    if (latest.state != nullptr) worth.emplace_back(session, std::move(latest));
  });
  std::sort(worth.begin(), worth.end(),
            [](const auto& a, const auto& b) { return a.first->use > b.first->use; });
  if (states.failing()) worth.clear();
  size_t next = 0;
  while (next < worth.size() && states.has_room(*worth[next].first, worth[next].second.fed)) {
    states.Publish(worth[next++].first);
  }
  return states.under_way() + static_cast<int>(worth.size() - next) + CountUnwritten(table);
}

Loop::Loop(Backend* backend, const EngineOptions& options, bool with_bos, Clock clock,
           RequestQueue* queue, Emitter* emitter, EngineMeters* meters,
           const ReplicaIdentity& identity, const StateStamp& stamp, DiskTier disk,
           std::vector<WarmState> warm)
    : options_(options),
      clock_(std::move(clock)),
      queue_(queue),
      emitter_(emitter),
      meters_(meters),
      slots_(backend),
      run_(backend, ScheduleOptionsOf(options, backend->limits())),
      checkpoints_(options, backend->limits().state_size(), with_bos, stamp, std::move(disk),
                   [queue] { queue->Wake(); }),
      sessions_(options.sessions, with_bos, checkpoints_.store(), options.session_store != nullptr),
      sharing_(options.session_store == nullptr
                   ? nullptr
                   : std::make_unique<ReplicaSharing>(options, &sessions_, identity, stamp,
                                                      checkpoints_.store(), clock_, queue)),
      now_(clock_()),
      admission_(AdmissionLimitsOf(options, backend->limits())),
      readers_(options.reader_timeout,
               StateMemoryOf(options.max_host_bytes, backend->limits()).reader_bytes) {
  const BackendLimits& limits = backend->limits();
  load_.slot_bytes = int64_t{limits.num_slots} * static_cast<int64_t>(limits.bytes_per_slot);
  for (WarmState& state : warm) checkpoints_.KeepWarm(std::move(state));
}

void Loop::Run() {
  for (Outcome outcome = Turn(); outcome != Outcome::kStopped; outcome = Turn()) {
    if (outcome == Outcome::kBusy) continue;
    NotePhase(LoopPhase::kIdle);
    const absl::Duration due =
        sharing_ == nullptr ? absl::InfiniteDuration() : sharing_->sessions.DueIn();
    queue_->WaitForArrivals(
        std::min(std::min(next_deadline_, sessions_.next_expiry()) - now_, due));
  }
}

Loop::Outcome Loop::Turn() {
  TakeArrivals();
  if (arrivals_.stop) {
    EndAll(EndedBy(absl::StatusCode::kUnavailable, "SHUTDOWN", "The server is shutting down."));
    if (sharing_ != nullptr) {
      for (const auto& end : sharing_->sessions.Abandon())
        HandEnd(std::move(end->request), &ended_, emitter_);
    }
    if (poison_.ok()) TakeBackSlots().IgnoreError();  // no request is left that the error could end
    if (emitter_->has_ends()) Publish();
    return Outcome::kStopped;
  }
  bool ran = false;
  if (poison_.ok()) {
    const absl::Status status = RunWhatCanRun(&ran);
    if (!status.ok()) {
      queue_->Poison(status);
      poison_ = EndedBy(absl::StatusCode::kUnavailable, "BACKEND_FAILED",
                        "The model's backend has failed.");
    }
  }
  if (!ran) meters_->NoRun();
  if (!poison_.ok()) EndAll(poison_);
  const bool due = sharing_ != nullptr && (sharing_->sessions.DueIn() <= absl::ZeroDuration() ||
                                           !sharing_->lookups.empty());
  return ran || due || emitter_->has_ends() ? Outcome::kBusy : Outcome::kIdle;
}

void Loop::TakeArrivals() {
  NotePhase(LoopPhase::kArrivals);
  now_ = clock_();
  sessions_.Expire(now_);
  UpdateLoad();
  queue_->Exchange(now_, load_, &ended_, &arrivals_);
  // After Exchange: a client that learns of an end finds its place in the queue free.
  if (emitter_->HandAll()) queue_->EndsHanded();
  // After Exchange, too: reads that finish from now on wake the loop again.
  if (TakeFetchedStates()) Publish();
  for (const RequestId id : std::exchange(preparing_, {})) {
    const auto found = requests_.find(id);
    if (found != requests_.end()) Begin(found->second.get());
  }
  if (sharing_ != nullptr) TakeReplicated();
  for (auto& arrival : arrivals_.requests) {
    LiveRequest* request = arrival.get();
    next_deadline_ = std::min(next_deadline_, request->times.deadline);
    meters_->CountStart(request->kind);
    request->SetWake([queue = queue_, id = request->id] { queue->NoteRead(id); });
    requests_.emplace(request->id, std::move(arrival));
    Enter(request);
  }
  for (RequestId id : arrivals_.cancelled) {
    const auto found = requests_.find(id);
    if (found == requests_.end()) continue;
    EndRequest(found->second.get(),
               EndedBy(absl::StatusCode::kCancelled, "CANCELLED", "The request was cancelled."));
  }
  if (arrivals_.end_all) {
    EndAll(EndedBy(absl::StatusCode::kUnavailable, "DRAINING",
                   "The server stopped before the reply was complete."));
  }
  ResumeReaders();
  if (now_ >= next_deadline_) ExpireDeadlines();
  slots_.ForgetEnded();
}

void Loop::ExpireDeadlines() {
  std::vector<LiveRequest*> expired, cut;
  next_deadline_ = absl::InfiniteFuture();
  for (auto& [id, request] : requests_) {
    const absl::Time cut_at = readers_.EndsAt(*request);
    if (request->times.deadline <= now_) {
      expired.push_back(request.get());
    } else if (cut_at <= now_) {
      cut.push_back(request.get());
    } else {
      next_deadline_ = std::min({next_deadline_, request->times.deadline, cut_at});
    }
  }
  load_.unread_replies_ended += static_cast<int64_t>(cut.size());
  for (LiveRequest* request : cut) {
    EndRequest(request, EndedBy(absl::StatusCode::kResourceExhausted, "READER_TOO_SLOW",
                                absl::StrCat("Nothing of the reply was read for ",
                                             absl::FormatDuration(options_.reader_timeout), ".")));
  }
  for (LiveRequest* request : expired) {
    if (request->life.ended()) continue;  // because an earlier request ended
    EndRequest(request, EndedBy(absl::StatusCode::kDeadlineExceeded, "DEADLINE_EXCEEDED",
                                "The request's deadline has passed."));
  }
}

absl::Status Loop::RunWhatCanRun(bool* ran) {
  NotePhase(LoopPhase::kAdmit);
  int64_t forced = 0;
  for (Sequence* const sequence : slots_.holders()) {
    if (!sequence->request->life.ended() && sequence->TakeKnown(&forced)) Flush(sequence);
  }
  load_.forced_total += forced;
  load_.tokens_total += forced;
  slots_.ForgetEnded();
  RIVULET_RETURN_IF_ERROR(ParkReaders());
  RIVULET_RETURN_IF_ERROR(PreemptOthers());
  RIVULET_RETURN_IF_ERROR(TakeBackSlots());
  if (emitter_->has_ends()) Publish();
  const size_t before = slots_.holders().size();
  RIVULET_RETURN_IF_ERROR(AdmitWaiting());
  const bool admitted = slots_.holders().size() > before;
  RIVULET_ASSIGN_OR_RETURN(*ran, RunOnce());
  // Replies that nobody reads got slots back and cannot use them yet: no run publishes this.
  if (admitted && !*ran) Publish();
  return absl::OkStatus();
}

// Arrivals: a request begins when its session is free, finds the state that it continues from, and
// waits for slots.

void Loop::Enter(LiveRequest* request) {
  if (!request->session_ref) {
    if (sharing_ != nullptr && request->lookup() != nullptr) return sharing_->lookups.Look(request);
    return Begin(request);
  }
  if (request->closes_session && sharing_ != nullptr) return sharing_->lookups.Close(request);
  const SessionRef& ref = *request->session_ref;
  absl::StatusOr<Session*> session = sessions_.Find(ref.id, ref.tenant);
  if (!session.ok() && sharing_ != nullptr) {
    sharing_->sessions.EvictFor(1);
    session = sessions_.Adopt(ref.id, ref.tenant, now_);
  }
  if (!session.ok()) return EndRequest(request, session.status());
  if (request->closes_session) return CloseSession(*session, request);
  request->session = *session;
  const absl::StatusOr<bool> its_turn = sessions_.Enter(*session, request);
  if (!its_turn.ok()) return EndRequest(request, its_turn.status());
  if (*its_turn) return Begin(request);
  request->life.Go(RequestLife::State::kWaitsForTurn);
}

void Loop::TakeReplicated() {
  using Kind = ReplicatedSessions::Event::Kind;
  std::vector<ReplicatedSessions::Event> events = sharing_->sessions.Collect();
  for (const ReplicatedStates::Published& state : sharing_->states.Take()) {
    sharing_->sessions.NotePublished(state);
  }
  for (const ReplicatedLookups::Answered& answered : sharing_->lookups.Take()) {
    const auto found = requests_.find(answered.request);
    if (found == requests_.end()) continue;
    LiveRequest* const request = found->second.get();
    Session* const session =
        request->closes_session ? sessions_.Get(request->session_ref->id) : nullptr;
    if (answered.status.ok() && session != nullptr && !session->closed) {
      CloseSession(session, request);
    } else {
      EndRequest(request, answered.status);
    }
  }
  for (ReplicatedSessions::Event& event : events) {
    const auto found = requests_.find(event.request);
    LiveRequest* const request = found == requests_.end() ? nullptr : found->second.get();
    Session* const session = sessions_.Get(event.session);
    if (event.kind == Kind::kEnded) {
      NoteHeldEnd(*event.end->request, now_, meters_, &sharing_->totals);
      HandEnd(std::move(event.end->request), &ended_, emitter_);
      Session* const freed = event.end->session;
      if (freed == nullptr) continue;
      freed->replicated->awaits_end_event = false;
      if (!checkpoints_.Saves(*freed)) Release(freed);
    } else if (event.kind == Kind::kForgotten) {
      const bool used =
          session == nullptr || session->active != nullptr || session->replicated->life.known();
      if (!used) sessions_.Close(session);
    } else if (request == nullptr) {
      continue;  // it has ended meanwhile
    } else if (event.kind == Kind::kLost) {
      EndRequest(request, event.status);
    } else {
      meters_->NoteSessionClaim(now_ - request->times.claim);
      event.status.ok() ? Begin(request) : EndRequest(request, event.status);
    }
  }
  std::optional<int> unsaved;
  if (arrivals_.draining) unsaved = sharing_->Save(sessions_, !requests_.empty(), clock_.Steady());
  if (unsaved) load_.unsaved = unsaved;
  // Without requests, the next turn may be far away.
  if (unsaved || load_.replication != sharing_->totals) Publish();
}

void Loop::CloseSession(Session* session, LiveRequest* closing) {
  for (LiveRequest* request : sessions_.Close(session)) {
    if (request->life.ended()) continue;  // its end waits for the store
    EndRequest(request,
               EndedBy(absl::StatusCode::kCancelled, "SESSION_CLOSED", "The session was closed."));
  }
  EndRequest(closing, absl::OkStatus());
}

void Loop::Begin(LiveRequest* request) {
  using State = RequestLife::State;
  const std::optional<absl::Status> prepared = request->Prepare();
  if (!prepared) {
    if (request->life.state() != State::kPrepares) request->life.Go(State::kPrepares);
    return preparing_.push_back(request->id);  // TakeArrivals calls this again
  }
  if (!prepared->ok()) return EndRequest(request, *prepared);
  if (sharing_ != nullptr && request->session != nullptr &&
      request->life.state() != State::kClaims) {
    request->life.Go(State::kClaims);
    request->times.claim = now_;
    return sharing_->sessions.Claim(request);  // then TakeReplicated calls this again
  }
  const absl::Status status = request->Begin(&sessions_, now_);
  if (!status.ok()) return EndRequest(request, OfClaim(*request, status));
  FindState(request);
}

void Loop::FindState(LiveRequest* request) {
  request->life.Go(RequestLife::State::kFindsState);
  std::optional<FoundState> found = checkpoints_.Find(request);
  if (found) return ContinueFrom(request, *found);
  request->life.Go(RequestLife::State::kFetchesState);
}

void Loop::ContinueFrom(LiveRequest* request, const FoundState& found) {
  // A state of the prefix cache serves the session from now on.
  if (request->session != nullptr && found.kept.state != nullptr)
    request->session->Keep(found.kept);
  const absl::Status status = StartFrom(request, found, &sessions_, now_);
  if (!status.ok() || request->num_slots == 0) {
    checkpoints_.CountUse(*request);
    return EndRequest(request, OfClaim(*request, status));
  }
  request->life.Go(RequestLife::State::kWaitsForSlots);
  AddToAdmission(request, request->num_slots);
}

void Loop::AddToAdmission(LiveRequest* request, int slots) {
  LiveRequest::Account& account = request->account;
  const KeyShare key = account.key == nullptr ? KeyShare() : account.key->slots();
  account.tenant_number = admission_.Add(request->id, account.tenant, account.priority, slots, key);
}

bool Loop::TakeFetchedStates() {
  std::vector<Checkpoints::Fetched> fetched;
  if (!checkpoints_.TakeFetched(&fetched)) return false;
  for (auto& [request, found] : fetched) {
    if (found.view == nullptr) {
      FindState(request);  // it could not be read: finds another state, or none
    } else {
      ContinueFrom(request, found);
    }
  }
  return true;
}

// Slots: which requests give up slots, and which get them.

void Loop::ResumeReaders() {
  std::vector<LiveRequest*> read;
  for (const RequestId id : arrivals_.read) {
    const auto found = requests_.find(id);
    if (found != requests_.end()) read.push_back(found->second.get());
  }
  for (LiveRequest* request : readers_.Resume(read)) {
    request->times.resumed = now_;
    AddToAdmission(request, request->open_sequences);
  }
}

absl::Status Loop::ParkReaders() {
  if (readers_.empty() || admission_.empty()) return absl::OkStatus();
  int needed = -slots_.free_soon();
  for (int i = 0; i < kNumPriorities; ++i) {
    needed += admission_.slots_needed(static_cast<Priority>(i));
  }
  // Waiting requests may wait only for slots of their own tenant or key.
  if (options_.max_tenant_slots > 0 || admission_.limits_keys()) {
    needed = std::numeric_limits<int>::max();
  }
  const auto bytes_of = [this](const LiveRequest& request) { return slots_.BytesOf(request); };
  for (LiveRequest* request : readers_.Yielding(needed, slots_.parked_bytes(), bytes_of)) {
    if (request->keeps_slots()) continue;  // a later turn takes them
    RIVULET_RETURN_IF_ERROR(slots_.MoveToHost(*request, /*parked=*/true));
    request->life.Go(RequestLife::State::kParked);
    admission_.GiveBack(request->id, request->open_sequences);
  }
  return absl::OkStatus();
}

absl::Status Loop::PreemptOthers() {
  const auto victims = admission_.Victims(slots_.free_soon(), run_.number());
  const auto keeps_slots = [this](RequestId id) { return requests_.at(id)->keeps_slots(); };
  if (absl::c_any_of(victims, keeps_slots)) return absl::OkStatus();  // a later turn takes all
  for (const RequestId id : victims) {
    LiveRequest* const request = requests_.at(id).get();
    RIVULET_RETURN_IF_ERROR(slots_.MoveToHost(*request, /*parked=*/false));
    request->life.Go(RequestLife::State::kWaitsAgain);
    request->times.resumed = now_;
    admission_.Preempt(id);
    load_.preempted_total += request->open_sequences;
  }
  return absl::OkStatus();
}

absl::Status Loop::AdmitWaiting() {
  while (const std::optional<RequestId> id = admission_.Next(slots_.free(), run_.number())) {
    LiveRequest* const request = requests_.at(*id).get();
    const bool for_the_first_time = !request->life.in_host_memory();
    request->life.Go(RequestLife::State::kHoldsSlots);
    if (for_the_first_time) {
      // A request may arrive after a turn has looked at the clock.
      request->times.admitted = std::max(now_, request->times.arrival);
      meters_->NoteQueueTime(*request->times.admitted - request->times.arrival);
      // Requests with the same first tokens may have left a better state meanwhile. With that
      // state, too, the request feeds at least one token, so it does not end here.
      std::optional<FoundState> better;
      if (request->looks_again) better = checkpoints_.FindBetter(request);
      if (better) StartFrom(request, *better, &sessions_, now_).IgnoreError();
      checkpoints_.CountUse(*request);
      request->CreateSequences();
      for (auto& sequence : request->sequences) sequence->segments = request->kept_segments;
      request->kept_segments.clear();
    }
    if (request->life.paused()) admission_.EndQuantum(*id);
    for (auto& sequence : request->sequences) {
      if (!sequence->ended) slots_.Give(sequence.get());
    }
  }
  return slots_.Prepare();
}

absl::Status Loop::TakeBackSlots() {
  RIVULET_ASSIGN_OR_RETURN(const std::vector<Session*> saved, checkpoints_.Save(&slots_));
  for (Session* session : saved) {
    if (sharing_ != nullptr) sharing_->states.Publish(session);
    Release(session);
  }
  return slots_.ZeroFreed();
}

// A run.

absl::StatusOr<bool> Loop::RunOnce() {
  if (!run_.Plan(slots_.holders(), now_, !admission_.empty())) return false;
  load_.fed_total += run_.fed();
  load_.drafted_total += run_.drafted();
  const absl::Duration begin = clock_.Steady();
  meters_->BeginRun(clock_());
  RIVULET_RETURN_IF_ERROR(run_.Submit());
  for (bool complete = false; !complete;) {
    RIVULET_ASSIGN_OR_RETURN(complete, run_.Poll());
    if (run_.has_records()) HandleRecords();
    if (complete) break;
    emitter_->HandReady();
    run_.BackOff();
  }
  meters_->EndRun(clock_(), run_.rows());
  const absl::Duration time = clock_.Steady() - begin;
  run_.NoteTime(time);
  // A run mostly of prompt tokens shows the cost of feeding a session's tokens again.
  if (sharing_ != nullptr && run_.fed() > run_.rows()) sharing_->states.NoteRun(run_.fed(), time);
  NotePhase(LoopPhase::kEnd);
  RIVULET_RETURN_IF_ERROR(AfterRun());
  return true;
}

void Loop::HandleRecords() {
  now_ = clock_();
  const std::span<Sequence* const> given = run_.GiveRecords();
  load_.tokens_total += run_.sampled();
  load_.accepted_total += run_.accepted();
  for (Sequence* sequence : given) Flush(sequence);
  slots_.ForgetEnded();
}

void Loop::Flush(Sequence* sequence) {
  if (sequence->ended) return;  // with its request, because of another sequence
  LiveRequest* request = sequence->request;
  if (!request->times.first_token) request->times.first_token = now_;
  const int64_t before = request->usage.completion_tokens;
  if (sequence->Flush()) {
    NoteDelivery(now_, &request->times, meters_);
    const int64_t generated = request->usage.completion_tokens - before;
    KeyAccount* const key = request->account.key.get();
    if (key != nullptr) key->TakeTokens(generated, now_);
    request->account.usage->generated += generated;
    emitter_->PutReady(request);
    if (sharing_ != nullptr && request->session != nullptr) {
      sharing_->sessions.NoteTokens(request->session);
    }
    if (readers_.Pause(request, now_)) {
      admission_.EndQuantum(request->id);
      next_deadline_ = std::min(next_deadline_, readers_.EndsAt(*request));
    }
  }
  if (sequence->finished) EndSequence(sequence);
}

absl::Status Loop::AfterRun() {
  while (Sequence* const sequence = run_.TakeDone()) {
    RIVULET_RETURN_IF_ERROR(checkpoints_.KeepAfterRun(sequence, &slots_));
    const Sequence::Next next = sequence->OnRunDone();
    if (sequence->finished) {
      EndSequence(sequence);
    } else if (next == Sequence::Next::kFork) {
      RIVULET_RETURN_IF_ERROR(slots_.Fork(*sequence));
      for (auto& forked : sequence->request->sequences) forked->OnForked();
    } else if (next == Sequence::Next::kZero) {
      slots_.ZeroSoon(sequence);
    }
  }
  slots_.ForgetEnded();
  return TakeBackSlots();
}

// Ends.

void Loop::EndSequence(Sequence* sequence) {
  load_.ended_at_limit += sequence->ended_at_limit() ? 1 : 0;
  FreeSlot(sequence);
  LiveRequest* request = sequence->request;
  if (!sequence->status.ok() || request->open_sequences == 0) {
    EndRequest(request, sequence->status);
  }
}

void Loop::FreeSlot(Sequence* sequence) {
  LiveRequest* const request = sequence->request;
  if (sequence->slot != kGuardSlot) admission_.GiveBack(request->id, 1);
  --request->open_sequences;
  run_.Drop(sequence);
  LeftState left = slots_.TakeBack(sequence);
  if (request->session != nullptr) checkpoints_.SaveSoon(*sequence, std::move(left));
}

void Loop::EndRequest(LiveRequest* request, const absl::Status& status) {
  for (auto& sequence : request->sequences) {
    if (!sequence->ended) FreeSlot(sequence.get());
  }
  if (request->life.waits_for_slots()) admission_.Remove(request->id);
  checkpoints_.Leave(request);
  readers_.Leave(request);
  Session* const session = request->session;
  if (session != nullptr) SessionTable::Leave(session, request);
  const bool had_begun = request->life.begun();
  if (sharing_ != nullptr && !had_begun) {
    sharing_->sessions.Leave(*request);
    sharing_->lookups.Leave(*request);
  }
  request->life.Go(RequestLife::State::kEnded);
  const absl::Time end = request->times.end = clock_();
  Usage& usage = request->usage;
  const LiveRequest::Times& times = request->times;
  usage.arrival = times.arrival;
  usage.queue_time = times.admitted.value_or(end) - times.arrival;
  if (times.first_token) usage.first_token_time = *times.first_token - times.arrival;
  usage.total_time = end - times.arrival;
  meters_->CountEnd(request->kind, status);
  meters_->NoteDuration(usage.total_time);
  meters_->CountCachedTokens(usage.cached_prompt_tokens);
  const bool has_session = session != nullptr && session->active == request;
  if (has_session && had_begun) request->Settle(status);
  ErrorDetail detail = GetErrorDetail(status);
  if (!status.ok()) request->DescribeProgress(&detail);
  request->status = MakeError(status.code(), status.message(), detail);  // shares no memory
  std::unique_ptr<LiveRequest> ended = std::move(requests_.extract(request->id).mapped());
  const std::vector<Session*> opened = sessions_.TakeOpened();
  const bool changed = has_session && had_begun;
  if (sharing_ != nullptr && (changed || !opened.empty())) {
    sharing_->sessions.End(std::move(ended), changed ? session : nullptr, opened);
  } else {
    HandEnd(std::move(ended), &ended_, emitter_);
  }
  // While its state is to be saved, no other request gets the session.
  if (has_session && !checkpoints_.Saves(*session)) Release(session);
}

void Loop::EndAll(const absl::Status& status) {
  while (!requests_.empty()) EndRequest(requests_.begin()->second.get(), status);
  slots_.ForgetEnded();
  if (poison_.ok()) return;
  slots_.Abandon();
  for (Session* session : checkpoints_.ForgetUnsaved()) Release(session);
}

void Loop::Release(Session* session) {
  if (sharing_ != nullptr && ReplicatedSessions::Ends(*session)) return;  // TakeReplicated does it
  const bool forgotten = sharing_ != nullptr && !session->closed &&
                         (session->replicated == nullptr || !session->replicated->life.known());
  if (LiveRequest* const next = sessions_.Release(session, now_)) return Begin(next);
  if (forgotten) sessions_.Close(session);  // it is in the store, or nowhere
}

// For other threads: the load, and the replies.

void Loop::UpdateLoad() {
  load_.slots_used = load_.running = slots_.used();
  load_.slot_bytes_used = slots_.used_bytes();
  load_.preempted = admission_.preempted();
  load_.parked = slots_.in_host_memory() - load_.preempted;
  load_.tenants = admission_.tenants();
  for (int i = 0; i < kNumPriorities; ++i) {
    load_.queued_by_priority[static_cast<size_t>(i)] =
        admission_.slots_needed(static_cast<Priority>(i));
  }
  load_.oldest_wait = -absl::InfiniteDuration();
  if (!admission_.empty()) {
    const LiveRequest& oldest = *requests_.at(admission_.oldest());
    load_.oldest_wait = now_ - std::max(oldest.times.arrival, oldest.times.resumed);
  }
  load_.client_sessions = sessions_.size();
  if (sharing_ != nullptr) load_.replication = sharing_->totals;
  load_.states = checkpoints_.store()->totals();
  load_.cache_hits = checkpoints_.hits();
  load_.cache_misses = checkpoints_.misses();
  load_.cache_bytes = checkpoints_.cache_bytes();
  load_.state_file_error = std::string(checkpoints_.store()->file_error().message());
}

void Loop::Publish() {
  UpdateLoad();
  queue_->Note(now_, load_, &ended_);
  if (emitter_->HandAll()) queue_->EndsHanded();
}

}  // namespace rivulet
