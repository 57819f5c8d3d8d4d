// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/generate/generate_reactor.h"

#include <grpc/grpc.h>

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "server/grpc/calls/caller.h"
#include "server/grpc/calls/guarded.h"
#include "server/grpc/wire/convert.h"
#include "server/grpc/wire/convert_session.h"
#include "server/grpc/wire/convert_text.h"
#include "server/grpc/wire/wire_field.h"
#include "server/process/call_note.h"

namespace rivulet {
namespace {

constexpr char kMethod[] = "Generate";

}  // namespace

GenerateReactor::GenerateReactor(ModelHold model, grpc::CallbackServerContext* context,
                                 const v1::GenerateRequest* request, ServerCalls* calls)
    : model_(std::move(model)),
      context_(&CallContext::Of(context)),
      call_(context->c_call()),
      request_(request),
      calls_(calls) {
  grpc_call_ref(call_);
  context_->CountIn(&calls_->active);
}

GenerateReactor::~GenerateReactor() { grpc_call_unref(call_); }

GenerateReactor* GenerateReactor::Start(const absl::StatusOr<ModelHold>& model,
                                        grpc::CallbackServerContext* context,
                                        const v1::GenerateRequest& request, ServerCalls* calls) {
  auto* reactor = new GenerateReactor(model.ok() ? *model : ModelHold(), context, &request, calls);
  if (!model.ok()) {
    reactor->Finish(reactor->context_->record().End(model.status(), &calls->errors));
    return reactor;
  }
  ++reactor->holders_;
  reactor->text_.Run(calls, reactor->context_->caller(), DeadlineOf(*context), TextBytes(request),
                     // Its own hold: the engine may make its last call before Begin has returned.
                     [reactor, hold = *model](const TextTurn& turn) {
                       reactor->Begin(turn);
                       reactor->Release();
                     });
  return reactor;
}

void GenerateReactor::Begin(const TextTurn& turn) {
  absl::StatusOr<GenerateSpec> spec = Guarded([&] {
    return SpecOf(*context_, context_->caller(), *request_, model_.engine()->model(), turn);
  });
  const absl::Status status = spec.ok() ? Submit(*std::move(spec)) : spec.status();
  if (status.ok()) return;
  model_.Release();
  Finish(context_->record().End(NameWireField(status, *request_), &calls_->errors));
}

absl::Status GenerateReactor::Submit(GenerateSpec spec) {
  RequestId id = 0;
  {
    // Held while submitting: the first OnReady may come before Generate returns and needs reply_.
    MutexLock lock(&mutex_);
    Engine* const engine = model_.engine();
    seed_ = spec.sampling.seed;
    patience_ = engine->options().reader_timeout;
    ++holders_;
    absl::StatusOr<std::shared_ptr<Reply>> submitted =
        Guarded([&] { return engine->Generate(std::move(spec), this); });
    if (!submitted.ok()) {
      --holders_;  // Begin's caller holds one
      finished_ = true;
      return submitted.status();
    }
    reply_ = *std::move(submitted);
    id = reply_->id();
  }
  model_.SetId(id);
  return absl::OkStatus();
}

void GenerateReactor::OnReady() {
  const CallNote note(kMethod);
  bool last = false;
  Action action = Action::kNone;
  {
    MutexLock lock(&mutex_);
    // The engine ends a reply on the thread that calls OnReady, just before the last call.
    last = reply_->end().has_value();
    action = Advance();
    if (last && !done_) WatchReader();
  }
  Perform(action);
  if (!last) return;
  model_.Release();
  Release();
}

void GenerateReactor::WatchReader() {
  if (patience_ == absl::InfiniteDuration()) return;
  messages_when_watched_ = messages_read_;
  ++holders_;
  // The alarm calls back on another thread, never from within Set or Cancel.
  alarm_.Set(absl::ToChronoTime(absl::Now() + patience_),
             [this](bool expired) { CutUnread(expired); });
}

void GenerateReactor::CutUnread(bool expired) {
  bool cut = false;
  {
    MutexLock lock(&mutex_);
    if (expired && !done_) cut = messages_read_ == messages_when_watched_;
    if (expired && !done_ && !cut) WatchReader();
    if (cut) {
      grpc_call_ref(call_);  // OnDone may come before the cancellation
      const bool counted = absl::IsResourceExhausted(reply_->end()->status);  // at its Finish
      if (!counted) calls_->errors.Add(absl::StatusCode::kResourceExhausted, kReaderTooSlow);
      context_->record().SetCut(absl::StatusCode::kResourceExhausted, kReaderTooSlow);
    }
  }
  if (cut) {
    // Not under the lock: OnCancel may come within the call.
    CancelUnread(call_);
    grpc_call_unref(call_);
  }
  Release();
}

void GenerateReactor::OnWriteDone(bool ok) {
  const CallNote note(kMethod);
  Action action = Action::kNone;
  {
    MutexLock lock(&mutex_);
    writing_ = false;
    if (ok) ++messages_read_;
    if (!ok) broken_ = true;
    action = Advance();
  }
  if (!ok) model_.Cancel();
  Perform(action);
}

void GenerateReactor::OnCancel() {
  const CallNote note(kMethod);
  {
    MutexLock lock(&mutex_);
    broken_ = true;
  }
  text_.Cancel();   // Begin then finishes the call
  model_.Cancel();  // the reply then ends, and OnReady finishes the call
}

void GenerateReactor::OnDone() {
  {
    MutexLock lock(&mutex_);
    done_ = true;
    alarm_.Cancel();
  }
  Release();
}

void GenerateReactor::Release() {
  if (holders_.fetch_sub(1) == 1) delete this;
}

GenerateReactor::Action GenerateReactor::Advance() {
  try {
    return Next();
  } catch (...) {
    failed_ = ErrorOfException();
  }
  broken_ = true;  // so Next makes no more messages
  const Action action = Next();
  return action == Action::kNone ? Action::kCancel : action;
}

GenerateReactor::Action GenerateReactor::Next() {
  if (writing_ || finished_) return Action::kNone;
  if (broken_) waiting_.clear();  // first: parts that nobody can read must not hide the end
  if (waiting_.empty()) {
    end_ = reply_->end();  // before Take: after the end, Take returns everything
    waiting_ = reply_->Take();
    std::reverse(waiting_.begin(), waiting_.end());
  }
  if (broken_) waiting_.clear();
  if (waiting_.empty() && !end_) return Action::kNone;
  const bool ends_well = end_ && end_->status.ok() && !broken_;
  if (waiting_.empty() && !ends_well) {
    context_->record().SetUsage(end_->usage);
    finished_ = true;
    return Action::kFinish;
  }
  if (waiting_.empty()) {
    message_.Clear();
  } else {
    if (waiting_.back().session) seed_ = waiting_.back().session->seed;
    ToWire(std::move(waiting_.back()), &message_);
    waiting_.pop_back();
  }
  if (!std::exchange(seed_sent_, true)) {
    message_.set_seed(seed_);
    if (const auto known = reply_->fingerprint()) message_.set_fingerprint(*known);
  }
  const bool last = waiting_.empty() && ends_well;
  if (last) {
    ToWire(end_->usage, message_.mutable_usage());
    if (end_->durability) ToWire(*end_->durability, message_.mutable_durability());
  }
  bytes_.Set(message_);
  if (!last) {
    writing_ = true;
    return Action::kWrite;
  }
  context_->record().SetUsage(end_->usage);
  finished_ = true;
  return Action::kWriteAndFinish;
}

void GenerateReactor::Perform(Action action) {
  switch (action) {
    case Action::kNone:
      return;
    case Action::kCancel:
      return model_.Cancel();
    case Action::kWrite:
      context_->BeforeMessage();
      StartWrite(&bytes_);
      return;
    case Action::kWriteAndFinish:
      context_->BeforeMessage();
      StartWriteAndFinish(&bytes_, grpc::WriteOptions(),
                          context_->record().End(absl::OkStatus(), nullptr));
      return;
    case Action::kFinish:
      Finish(context_->record().End(
          failed_.ok() ? NameWireField(reply_->end()->status, *request_) : failed_,
          &calls_->errors));
      return;
  }
}

}  // namespace rivulet
