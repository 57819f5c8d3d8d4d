// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/multiplex/multiplex_reactor.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "model/base/error.h"
#include "server/grpc/calls/caller.h"
#include "server/grpc/calls/guarded.h"
#include "server/grpc/wire/convert_session.h"
#include "server/grpc/wire/convert_text.h"
#include "server/grpc/wire/received.h"
#include "server/grpc/wire/status_map.h"
#include "server/process/call_note.h"

namespace rivulet {
namespace {

constexpr char kMultiplex[] = "Multiplex";
// After a part with more bytes, the memory that it leaves in the message is freed.
constexpr size_t kSmallPartBytes = 512;

absl::Status Refusal(absl::StatusCode code, absl::string_view reason, absl::string_view field,
                     absl::string_view message, absl::Duration retry_after = {}) {
  ErrorDetail detail;
  detail.reason = std::string(reason);
  detail.field = std::string(field);
  detail.retry_after = retry_after;
  return MakeError(code, message, detail);
}

absl::Status Draining() {
  return Refusal(absl::StatusCode::kUnavailable, "DRAINING", "", "The server is draining.",
                 absl::Seconds(1));
}

absl::Status Gone() { return absl::CancelledError("The client has gone."); }

}  // namespace

bool MultiplexStreams::Add(MultiplexReactor* stream) {
  MutexLock lock(&mutex_);
  streams_.insert(stream);
  return !draining_;
}

void MultiplexStreams::Remove(MultiplexReactor* stream) {
  MutexLock lock(&mutex_);
  streams_.erase(stream);
}

void MultiplexStreams::Drain() {
  std::vector<MultiplexReactor*> streams;
  {
    MutexLock lock(&mutex_);
    draining_ = true;
    for (MultiplexReactor* stream : streams_) {
      stream->Hold();
      streams.push_back(stream);
    }
  }
  for (MultiplexReactor* stream : streams) {
    stream->Drain();
    stream->Release();
  }
}

MultiplexReactor::MultiplexReactor(grpc::CallbackServerContext* context, const ServedModels* models,
                                   int max_open, MultiplexStreams* streams, ServerCalls* calls)
    : call_(&CallContext::Of(context)),
      models_(models),
      max_open_(static_cast<size_t>(max_open)),
      streams_(streams),
      calls_(calls) {
  call_->CountIn(&calls_->active);
  StartRead(&request_);
  if (!streams_->Add(this)) Drain();
}

void MultiplexReactor::Drain() {
  {
    MutexLock lock(&mutex_);
    draining_ = true;
  }
  Pump();
}

void MultiplexReactor::Release() {
  if (holders_.fetch_sub(1) == 1) delete this;
}

void MultiplexReactor::OnMemberReady(MultiplexMember* member) {
  {
    MutexLock lock(&mutex_);
    ready_.push_back(member);
    if (std::exchange(batch_pending_, true)) return;
    Hold();
  }
  RunAfterBatch([this] {
    {
      MutexLock lock(&mutex_);
      batch_pending_ = false;
    }
    Pump();
    Release();
  });
}

void MultiplexReactor::OnReadDone(bool ok) {
  const CallNote note(kMultiplex);
  {
    MutexLock lock(&mutex_);
    ++readers_;
    if (!ok) half_closed_ = true;
  }
  if (ok && request_.error.ok() && !Handle()) return;
  if (ok && !request_.error.ok()) Break(request_.error);
  AfterRead(ok);
}

void MultiplexReactor::AfterRead(bool ok) {
  bool read_on = false;
  {
    MutexLock lock(&mutex_);
    read_on = ok && !broken_ && !finished_;
    if (read_on && notes_.size() >= kMaxNotes) {
      read_paused_ = true;
      read_on = false;
    }
  }
  if (read_on) StartRead(&request_);
  {
    MutexLock lock(&mutex_);
    --readers_;
  }
  Pump();
}

void MultiplexReactor::OnWriteDone(bool ok) {
  {
    MutexLock lock(&mutex_);
    writing_ = false;
  }
  if (!ok) return Break(Gone());
  Pump();
  if (ReadOn()) Pump();
}

void MultiplexReactor::OnCancel() { Break(Gone()); }

void MultiplexReactor::OnDone() {
  streams_->Remove(this);
  Release();
}

bool MultiplexReactor::Handle() {
  const v1::MultiplexRequest& request = request_.message;
  switch (request.action_case()) {
    case v1::MultiplexRequest::kGenerate:
      return Begin();
    case v1::MultiplexRequest::kCancel:
      CancelRequest(request.key());
      break;
    case v1::MultiplexRequest::ACTION_NOT_SET:
      AddNote({request.key(),
               Refusal(absl::StatusCode::kInvalidArgument, "ACTION_MISSING", "action",
                       "action is required: one of generate or cancel"),
               nullptr});
      break;
  }
  return true;
}

bool MultiplexReactor::Begin() {
  const std::shared_ptr<MultiplexMember> member = Open();
  if (member == nullptr) return true;
  absl::Status status = Guarded([&] { return Submit(member); });
  if (status.ok()) return false;
  EndUnsubmitted(std::move(status), member);
  return true;
}

std::shared_ptr<MultiplexMember> MultiplexReactor::Open() {
  const uint64_t key = request_.message.key();
  auto member = std::make_shared<MultiplexMember>(key, call_->record(), this);
  MutexLock lock(&mutex_);
  if (finished_ || broken_) return nullptr;
  if (open_.contains(key)) {
    notes_.push_back({key,
                      Refusal(absl::StatusCode::kInvalidArgument, "KEY_IN_USE", "key",
                              absl::StrCat("key is ", key, ", which an open request has")),
                      nullptr});
    return nullptr;
  }
  if (open_.size() >= max_open_) {
    notes_.push_back({key,
                      Refusal(absl::StatusCode::kResourceExhausted, "OPEN_REQUEST_LIMIT", "",
                              absl::StrCat("the stream has ", open_.size(),
                                           " open requests, which is the limit"),
                              absl::Seconds(1)),
                      std::move(member)});
    return nullptr;
  }
  open_[key] = member;
  return member;
}

absl::Status MultiplexReactor::Submit(const std::shared_ptr<MultiplexMember>& member) {
  const v1::MultiplexRequest& request = request_.message;
  // For each request: a key may expire or be revoked while the stream is open.
  RIVULET_ASSIGN_OR_RETURN(const Caller caller,
                           calls_->callers.CallerOf(call_->client_metadata(), Role::kClient));
  RIVULET_RETURN_IF_ERROR(caller.TakeRequest());
  RIVULET_ASSIGN_OR_RETURN(const ModelHold model,
                           models_->Find(request.generate().model(), caller.models()));
  member->record().SetModel(model.name());
  member->record().SetSession(SessionIn(request.generate()));
  absl::Time deadline = DeadlineOf(*call_);
  if (request.has_timeout()) {
    RIVULET_ASSIGN_OR_RETURN(const absl::Duration timeout,
                             ToDuration("TIMEOUT_OUT_OF_RANGE", "timeout", request.timeout()));
    if (timeout <= absl::ZeroDuration()) {
      return InvalidField("TIMEOUT_OUT_OF_RANGE", "timeout",
                          absl::StrCat("timeout is ", absl::FormatDuration(timeout),
                                       "; it must be above 0, or absent"));
    }
    deadline = std::min(deadline, absl::Now() + timeout);
  }
  Hold();
  member->text().Run(calls_, caller, deadline, TextBytes(request.generate()),
                     [this, caller, model, member](const TextTurn& turn) {
                       AfterText(turn, caller, model, member);
                       AfterRead(true);
                       Release();
                     });
  return absl::OkStatus();
}

void MultiplexReactor::AfterText(const TextTurn& turn, const Caller& caller, const ModelHold& model,
                                 const std::shared_ptr<MultiplexMember>& member) {
  const v1::GenerateRequest& request = request_.message.generate();
  absl::Status status = Guarded([&]() -> absl::Status {
    RIVULET_ASSIGN_OR_RETURN(GenerateSpec spec,
                             SpecOf(*call_, caller, request, model.engine()->model(), turn));
    spec.deadline = turn.order().deadline;
    return member->Submit(model, std::move(spec), request);
  });
  if (!status.ok()) EndUnsubmitted(std::move(status), member);
}

void MultiplexReactor::EndUnsubmitted(absl::Status why,
                                      const std::shared_ptr<MultiplexMember>& member) {
  MutexLock lock(&mutex_);
  open_.erase(member->key());
  notes_.push_back({member->key(), std::move(why), member});
}

void MultiplexReactor::CancelRequest(uint64_t key) {
  std::shared_ptr<MultiplexMember> member;
  {
    MutexLock lock(&mutex_);
    const auto found = open_.find(key);
    if (found != open_.end()) member = found->second;
  }
  if (member != nullptr) return member->Cancel();
  AddNote({key,
           Refusal(absl::StatusCode::kNotFound, "KEY_NOT_OPEN", "key",
                   absl::StrCat("key is ", key, ", which no open request has")),
           nullptr});
}

void MultiplexReactor::AddNote(Note note) {
  MutexLock lock(&mutex_);
  notes_.push_back(std::move(note));
}

void MultiplexReactor::Break(absl::Status why) {
  std::vector<std::shared_ptr<MultiplexMember>> open;
  {
    MutexLock lock(&mutex_);
    if (!broken_) {
      broken_ = std::move(why);
      for (const auto& [key, member] : open_) open.push_back(member);
    }
  }
  for (const auto& member : open) member->Cancel();
  Pump();
}

void MultiplexReactor::Pump() {
  const CallNote note(kMultiplex);
  Action action = Action::kNone;
  absl::Status end;
  while (action == Action::kNone) {
    std::vector<Note> notes;
    bool broken = false;
    {
      MutexLock lock(&mutex_);
      if (writing_ || batch_pending_ || finished_) return;
      if (ready_.empty() && notes_.empty() && outgoing_.members.empty() && !Over()) return;
      writing_ = true;  // so only this thread uses what Gather uses
      outgoing_.members.insert(outgoing_.members.end(), ready_.begin(), ready_.end());
      ready_.clear();
      notes.swap(notes_);
      broken = broken_.has_value();
    }
    std::vector<uint64_t> ended;
    const absl::Status gathered = Guarded([&] {
      Gather(broken, notes, &ended);
      outgoing_.bytes.Set(outgoing_.message);
      return absl::OkStatus();
    });
    if (!gathered.ok()) Break(gathered);  // Break calls Pump, which leaves the rest to this call
    MutexLock lock(&mutex_);
    for (const uint64_t key : ended) open_.erase(key);
    action = Next();
    if (action == Action::kNone) writing_ = false;
    // A client that goes away half-closes the stream, too.
    if (action == Action::kFinish && broken_) end = *broken_;
    if (action == Action::kFinish && !broken_ && !half_closed_) end = Draining();
  }
  Perform(action, end);
}

void MultiplexReactor::Gather(bool broken, const std::vector<Note>& notes,
                              std::vector<uint64_t>* ended) {
  if (std::exchange(outgoing_.large_parts, false)) v1::MultiplexReply().Swap(&outgoing_.message);
  outgoing_.message.Clear();
  size_t bytes = 0;
  int counted = 0;
  const auto count = [&] {
    for (; counted < outgoing_.message.parts_size(); ++counted) {
      const size_t part = outgoing_.message.parts(counted).ByteSizeLong();
      outgoing_.large_parts |= part > kSmallPartBytes;
      bytes += part;
    }
  };
  ErrorCounts* const errors =
      broken ? nullptr : &calls_->errors;  // broken: no client receives them
  for (const Note& note : notes) {
    v1::MultiplexPart* const part = outgoing_.message.add_parts();
    part->set_key(note.key);
    if (note.ended != nullptr) {
      note.ended->record().End(note.status, errors, part->mutable_error());
      note.ended->record().Write();
    } else {
      ToWire(note.status, errors, call_->record().id(), part->mutable_refused());
    }
  }
  count();
  while (!outgoing_.members.empty() && (broken || bytes < kMessageBytes)) {
    MultiplexMember* const member = outgoing_.members.front();
    absl::Cleanup thrown = [this, member] {
      if (!member->Requeue()) outgoing_.members.pop_front();
    };
    if (member->Take(&outgoing_.message, errors)) ended->push_back(member->key());
    std::move(thrown).Cancel();
    outgoing_.members.pop_front();
    if (broken) {
      outgoing_.message.Clear();
    } else {
      count();
    }
  }
  if (broken) outgoing_.message.Clear();
}

bool MultiplexReactor::Over() const {
  return open_.empty() && readers_ == 0 && (half_closed_ || broken_ || draining_);
}

MultiplexReactor::Action MultiplexReactor::Next() {
  const bool last = Over() && ready_.empty() && notes_.empty() && outgoing_.members.empty();
  if (broken_ || outgoing_.message.parts_size() == 0) {
    finished_ = last;
    return last ? Action::kFinish : Action::kNone;
  }
  finished_ = last && half_closed_;
  return finished_ ? Action::kWriteAndFinish : Action::kWrite;
}

void MultiplexReactor::Perform(Action action, const absl::Status& end) {
  switch (action) {
    case Action::kNone:
      return;
    case Action::kWrite:
      call_->BeforeMessage();
      return StartWrite(&outgoing_.bytes);
    case Action::kWriteAndFinish:
      call_->BeforeMessage();
      return StartWriteAndFinish(&outgoing_.bytes, grpc::WriteOptions(),
                                 call_->record().End(absl::OkStatus(), nullptr));
    case Action::kFinish:
      return Finish(call_->record().End(end, nullptr));
  }
}

bool MultiplexReactor::ReadOn() {
  {
    MutexLock lock(&mutex_);
    if (!read_paused_ || broken_ || finished_ || notes_.size() >= kMaxNotes) return false;
    read_paused_ = false;
    ++readers_;
  }
  StartRead(&request_);
  MutexLock lock(&mutex_);
  --readers_;
  return true;
}

}  // namespace rivulet
