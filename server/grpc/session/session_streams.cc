// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/session/session_streams.h"

#include <grpc/grpc.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "model/base/error.h"
#include "model/cache_type.h"
#include "server/grpc/calls/caller.h"
#include "server/grpc/calls/guarded.h"
#include "server/grpc/wire/convert_session.h"
#include "server/process/call_note.h"
#include "server/sessions/snapshot.h"

namespace rivulet {
namespace {

constexpr char kSnapshot[] = "SnapshotSession", kRestore[] = "RestoreSession";

// The largest state of an incoming snapshot, with keys and values of any type.
size_t MostStateBytes(const Engine& engine) {
  const BackendLimits& limits = engine.limits();
  const StateSize widest = engine.model().config().state().size();  // in float32
  return std::max(limits.bytes_per_slot, widest.At(limits.context));
}

// Ends a call whose client has gone.
template <typename Reactor>
void FinishGone(CallContext* call, Reactor* reactor) {
  reactor->Finish(call->record().End(absl::CancelledError("The client has gone."), nullptr));
}

}  // namespace

SnapshotReactor::SnapshotReactor(grpc::CallbackServerContext* context, SnapshotStreams* streams)
    : call_(&CallContext::Of(context)), grpc_call_(context->c_call()), streams_(streams) {
  grpc_call_ref(grpc_call_);
  call_->CountIn(&streams_->calls->active);
}

SnapshotReactor::~SnapshotReactor() { grpc_call_unref(grpc_call_); }

absl::Status SnapshotReactor::Submit(ModelHold model, SessionRef session, absl::Time deadline) {
  Engine* const engine = model.engine();
  patience_ = engine->options().reader_timeout;
  model_.Hold(std::move(model));
  RIVULET_ASSIGN_OR_RETURN(const RequestId id,
                           rivulet::SnapshotSession(engine, std::move(session), deadline,
                                                    [this](absl::StatusOr<SessionImage> image) {
                                                      OnImage(std::move(image));
                                                    }));
  model_.SetId(id);
  return absl::OkStatus();
}

// Called on the engine's emitter thread, which has other replies to serve.
void SnapshotReactor::OnImage(absl::StatusOr<SessionImage> image) {
  const CallNote note(kSnapshot);
  absl::Status status = image.status();
  if (status.ok()) {
    image_ = *std::move(image);
    status = Take();
  }
  if (status.ok()) return EncodeNext();
  model_.Release();
  End(status);
}

absl::Status SnapshotReactor::Take() {
  const ViewPtr& state = image_.state.state;
  const int64_t bytes = (state == nullptr ? 0 : state->bytes()) +
                        image_.history.size() * int64_t{2 * sizeof(int32_t)} +
                        int64_t{2 * kSnapshotChunkBytes};
  RIVULET_RETURN_IF_ERROR(streams_->outgoing.Take(call_->caller().tenant, bytes));
  taken_ = bytes;
  return absl::OkStatus();
}

void SnapshotReactor::End(const absl::Status& status) {
  Finish(call_->record().End(status, &streams_->calls->errors));
}

void SnapshotReactor::EncodeNext() {
  const TextTurn::Order order{call_->caller().tenant, kSnapshotChunkBytes};
  const auto turn = std::make_shared<TextTurn>(order, [this](const TextTurn& own) {
    const CallNote note(kSnapshot);
    absl::Status status = own.Check();
    if (status.ok()) status = Guarded([this] { return Encode(); });
    model_.Release();
    if (!status.ok()) return End(status);
    WriteNext();
  });
  const absl::Status added = streams_->encoder.Add(turn);
  if (!added.ok()) turn->Run(added);
}

absl::Status SnapshotReactor::Encode() {
  if (!encoder_.has_value()) {
    const Engine& engine = *model_.engine();
    std::vector<std::span<const float>> state;
    if (image_.state.state != nullptr) state = image_.state.state->spans();
    encoder_.emplace(ToSnapshot(image_, engine.model(), engine.limits().numerics_id),
                     std::move(state), streams_->key);
    image_.history = TokenHistory();
  }
  piece_ = encoder_->Next();
  while (piece_.size() < kSnapshotChunkBytes && !encoder_->ended()) piece_ += encoder_->Next();
  sent_ = 0;
  return absl::OkStatus();
}

void SnapshotReactor::WriteNext() {
  const size_t count = std::min(kSnapshotMessageBytes, piece_.size() - sent_);
  const absl::Status status = Guarded([this, count] {
    v1::SnapshotSessionReply part;
    part.set_chunk(piece_.data() + sent_, count);
    message_.Set(part);
    return absl::OkStatus();
  });
  if (!status.ok()) return End(status);
  sent_ += count;
  call_->BeforeMessage();
  {
    MutexLock lock(&mutex_);
    writing_since_ = absl::Now();
    if (!std::exchange(watched_, true)) WatchUntil(*writing_since_ + patience_);
  }
  if (sent_ < piece_.size() || !encoder_->ended()) {
    StartWrite(&message_);
  } else {
    StartWriteAndFinish(&message_, grpc::WriteOptions(),
                        call_->record().End(absl::OkStatus(), nullptr));
  }
}

void SnapshotReactor::OnWriteDone(bool ok) {
  const CallNote note(kSnapshot);
  {
    MutexLock lock(&mutex_);
    writing_since_.reset();
  }
  if (!ok) return FinishGone(call_, this);
  if (sent_ < piece_.size()) return WriteNext();
  EncodeNext();
}

void SnapshotReactor::WatchUntil(absl::Time time) {
  if (time == absl::InfiniteFuture()) return;
  ++holders_;
  // Its calls come on another thread, never from within Set or Cancel.
  alarm_.Set(absl::ToChronoTime(time), [this](bool expired) { CutUnread(expired); });
}

void SnapshotReactor::CutUnread(bool expired) {
  bool cut = false;
  {
    MutexLock lock(&mutex_);
    if (expired && !done_) {
      const absl::Time now = absl::Now(), end = writing_since_.value_or(now) + patience_;
      cut = end <= now;
      if (!cut) WatchUntil(end);
    }
    if (cut) {
      streams_->calls->errors.Add(absl::StatusCode::kResourceExhausted, kReaderTooSlow);
      call_->record().SetCut(absl::StatusCode::kResourceExhausted, kReaderTooSlow);
    }
  }
  // Not under the lock: OnCancel may come within the call.
  if (cut) CancelUnread(grpc_call_);
  Release();
}

void SnapshotReactor::OnCancel() { model_.Cancel(); }

void SnapshotReactor::OnDone() {
  encoder_.reset();
  image_ = SessionImage();
  std::string().swap(piece_);
  if (taken_ > 0) streams_->outgoing.Give(call_->caller().tenant, taken_);
  {
    MutexLock lock(&mutex_);
    done_ = true;
    alarm_.Cancel();
  }
  Release();
}

void SnapshotReactor::Release() {
  if (holders_.fetch_sub(1) == 1) delete this;
}

RestoreReactor::RestoreReactor(grpc::CallbackServerContext* context, v1::RestoreSessionReply* reply,
                               SnapshotStreams* streams)
    : call_(&CallContext::Of(context)), reply_(reply), streams_(streams) {
  call_->CountIn(&streams_->calls->active);
  const absl::Status status = Take(streams_->options.message_bytes);
  End(status);
  if (!status.ok()) return;
  MutexLock lock(&mutex_);
  reading_ = true;
  pace_ = absl::Now();
  WatchUntil(pace_ + streams_->options.timeout);
  StartRead(&received_);  // gRPC's reactions come after the handler's return
}

absl::Status RestoreReactor::Take(int64_t bytes) {
  RIVULET_RETURN_IF_ERROR(streams_->incoming.Take(call_->caller().tenant, bytes));
  taken_ += bytes;
  return absl::OkStatus();
}

void RestoreReactor::OnReadDone(bool ok) {
  const CallNote note(kRestore);
  {
    MutexLock lock(&mutex_);
    if (!reading_) return;  // CutSlow has ended the call
    ++readers_;
  }
  const absl::Status status = ok ? Guarded([this] { return TakeMessage(); }) : absl::OkStatus();
  const bool read_on = ok && status.ok();
  {
    MutexLock lock(&mutex_);
    reading_ = read_on;
    if (bytes_.size() - paced_bytes_ >= kRestorePaceBytes) {
      paced_bytes_ = bytes_.size();
      pace_ = absl::Now();
    }
  }
  if (read_on) {
    StartRead(&received_);
  } else if (!ok && call_->IsCancelled()) {
    FinishGone(call_, this);
  } else {
    End(ok ? status : Guarded([this] { return Submit(); }));
  }
  MutexLock lock(&mutex_);  // gRPC calls OnDone after our return
  --readers_;
}

void RestoreReactor::End(const absl::Status& status) {
  if (!status.ok()) Finish(call_->record().End(status, &streams_->calls->errors));
}

absl::Status RestoreReactor::TakeMessage() {
  RIVULET_RETURN_IF_ERROR(received_.error);
  if (!begun_) RIVULET_RETURN_IF_ERROR(Begin());
  RIVULET_RETURN_IF_ERROR(TakeChunk(received_.message.chunk()));
  v1::RestoreSessionRequest().Swap(&received_.message);  // or its memory would be held twice
  return absl::OkStatus();
}

absl::Status RestoreReactor::Begin() {
  begun_ = true;
  const v1::RestoreSessionRequest& message = received_.message;
  name_ = message.model();
  RIVULET_ASSIGN_OR_RETURN(const ModelHold model, call_->FindModel(*streams_->models, name_));
  RIVULET_ASSIGN_OR_RETURN(
      idle_timeout_, ToIdleTimeout(message.has_idle_timeout() ? &message.idle_timeout() : nullptr));
  const Engine& engine = *model.engine();
  limits_ = engine.options().sessions;
  max_bytes_ = MaxSnapshotBytes(MostStateBytes(engine), limits_.most_tokens());
  return absl::OkStatus();
}

absl::Status RestoreReactor::TakeChunk(const std::string& chunk) {
  if (chunk.size() > kSnapshotChunkBytes) {
    return InvalidField("CHUNK_TOO_LARGE", "chunk",
                        absl::StrCat("chunk holds ", chunk.size(), " bytes; allowed: at most ",
                                     kSnapshotChunkBytes));
  }
  if (bytes_.size() + chunk.size() > max_bytes_) {
    // The first bytes say whether the server's limit of tokens is the cause.
    const auto tokens = SnapshotTokens(bytes_.empty() ? chunk : bytes_);
    RIVULET_RETURN_IF_ERROR(CheckRestored(tokens.value_or(0), limits_));
    ErrorDetail detail;
    detail.reason = "SNAPSHOT_TOO_LARGE";
    return MakeError(absl::StatusCode::kOutOfRange,
                     absl::StrCat("the snapshot has more than ", max_bytes_,
                                  " bytes, which no session of this model has"),
                     detail);
  }
  RIVULET_RETURN_IF_ERROR(Take(static_cast<int64_t>(chunk.size())));
  bytes_.append(chunk);
  return absl::OkStatus();
}

absl::Status RestoreReactor::Submit() {
  if (!begun_) RIVULET_RETURN_IF_ERROR(Begin());
  // Looks the model up again, because it is not held while the client sends.
  RIVULET_ASSIGN_OR_RETURN(const ModelHold model, call_->FindModel(*streams_->models, name_));
  Engine* const engine = model.engine();
  RIVULET_ASSIGN_OR_RETURN(Snapshot snapshot, DecodeSnapshot(bytes_, streams_->key));
  std::string().swap(bytes_);  // the budget now counts the decoded snapshot, of the same size
  const BackendLimits& limits = engine->limits();
  RIVULET_RETURN_IF_ERROR(CheckSnapshot(snapshot, engine->model(), limits, call_->caller().tenant));
  reply_->set_same_numerics(snapshot.numerics_id == limits.numerics_id);
  if (!SameCache(snapshot.numerics_id, limits.numerics_id)) snapshot.state.clear();
  RestoreSpec spec = ToRestoreSpec(std::move(snapshot));
  spec.tenant = call_->caller().tenant;
  spec.key = call_->caller().account();
  spec.idle_timeout = idle_timeout_;
  spec.deadline = DeadlineOf(*call_);
  submitted_ = model;
  const auto done = [this](const absl::StatusOr<SessionInfo>& info) {
    const CallNote note(kRestore);
    const absl::Status status = Guarded([&]() -> absl::Status {
      if (!info.ok()) return info.status();
      ToWire(*info, submitted_.name(), reply_->mutable_session());
      call_->record().SetSession(SessionIn(*reply_));
      call_->BeforeMessage();
      return absl::OkStatus();
    });
    submitted_.Release();
    Finish(call_->record().End(status, &streams_->calls->errors));
  };
  return rivulet::RestoreSession(engine, std::move(spec), done).status();
}

void RestoreReactor::WatchUntil(absl::Time time) {
  if (time == absl::InfiniteFuture()) return;
  ++holders_;
  // Its calls come on another thread, never from within Set or Cancel.
  alarm_.Set(absl::ToChronoTime(time), [this](bool expired) { CutSlow(expired); });
}

void RestoreReactor::CutSlow(bool expired) {
  const CallNote note(kRestore);
  absl::Status status;
  {
    MutexLock lock(&mutex_);
    // Without a read the call may be over, and the objects behind streams_ gone.
    if (expired && reading_) status = CheckPace();
  }
  End(status);
  Release();
}

absl::Status RestoreReactor::CheckPace() {
  const absl::Duration timeout = streams_->options.timeout;
  const absl::Time now = absl::Now(), end = pace_ + timeout;
  if (now < end || readers_ > 0) {
    WatchUntil(now < end ? end : now + timeout);
    return absl::OkStatus();
  }
  reading_ = false;
  ErrorDetail detail;
  detail.reason = "RESTORE_TOO_SLOW";
  return MakeError(absl::StatusCode::kAborted,
                   absl::StrCat("less than ", kRestorePaceBytes, " bytes of the snapshot came in ",
                                absl::FormatDuration(timeout), "; it had ", bytes_.size(),
                                ". Messages count once they are complete"),
                   detail);
}

void RestoreReactor::OnDone() {
  std::string().swap(bytes_);
  v1::RestoreSessionRequest().Swap(&received_.message);
  if (taken_ > 0) streams_->incoming.Give(call_->caller().tenant, taken_);
  {
    MutexLock lock(&mutex_);
    reading_ = false;
    alarm_.Cancel();
  }
  Release();
}

void RestoreReactor::Release() {
  if (holders_.fetch_sub(1) == 1) delete this;
}

}  // namespace rivulet
