// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/session/session_streams.h"

#include <algorithm>
#include <utility>

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

// Of a snapshot that may come: with keys and values of any type.
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

SnapshotReactor::SnapshotReactor(grpc::CallbackServerContext* context, const std::string& key,
                                 ServerCalls* calls)
    : call_(&CallContext::Of(context)), key_(key), calls_(calls) {
  call_->CountIn(&calls_->active);
}

absl::Status SnapshotReactor::Submit(ModelHold model, SessionRef session, absl::Time deadline) {
  Engine* const engine = model.engine();
  model_.Hold(std::move(model));
  RIVULET_ASSIGN_OR_RETURN(const RequestId id,
                           rivulet::SnapshotSession(engine, std::move(session), deadline,
                                                    [this](absl::StatusOr<SessionImage> image) {
                                                      OnImage(std::move(image));
                                                    }));
  model_.SetId(id);
  return absl::OkStatus();
}

// On the engine's emitter thread, which has other replies to serve: gRPC's reaction to the initial
// metadata comes on a thread of its own.
void SnapshotReactor::OnImage(absl::StatusOr<SessionImage> image) {
  const CallNote note(kSnapshot);
  if (!image.ok()) {
    model_.Release();
    return End(image.status());
  }
  image_ = *std::move(image);
  call_->BeforeMessage();
  StartSendInitialMetadata();
}

void SnapshotReactor::End(const absl::Status& status) {
  Finish(call_->record().End(status, &calls_->errors));
}

void SnapshotReactor::OnSendInitialMetadataDone(bool ok) {
  const CallNote note(kSnapshot);
  const absl::Status status = ok ? Guarded([this] { return Encode(); }) : absl::OkStatus();
  model_.Release();
  if (!ok) return FinishGone(call_, this);
  image_ = SessionImage();
  if (!status.ok()) return End(status);
  WriteNext();
}

absl::Status SnapshotReactor::Encode() {
  const Engine& engine = *model_.engine();
  bytes_ = EncodeSnapshot(ToSnapshot(image_, engine.model(), engine.limits().numerics_id), key_);
  return absl::OkStatus();
}

void SnapshotReactor::WriteNext() {
  const size_t count = std::min(kSnapshotChunkBytes, bytes_.size() - sent_);
  const absl::Status status = Guarded([this, count] {
    v1::SnapshotSessionReply part;
    part.set_chunk(bytes_.data() + sent_, count);
    message_.Set(part);
    return absl::OkStatus();
  });
  if (!status.ok()) return End(status);
  sent_ += count;
  if (sent_ < bytes_.size()) {
    StartWrite(&message_);
  } else {
    StartWriteAndFinish(&message_, grpc::WriteOptions(),
                        call_->record().End(absl::OkStatus(), nullptr));
  }
}

void SnapshotReactor::OnWriteDone(bool ok) {
  const CallNote note(kSnapshot);
  if (!ok) return FinishGone(call_, this);
  WriteNext();
}

void SnapshotReactor::OnCancel() { model_.Cancel(); }

void SnapshotReactor::OnDone() { delete this; }

RestoreReactor::RestoreReactor(grpc::CallbackServerContext* context, v1::RestoreSessionReply* reply,
                               Restores* restores)
    : call_(&CallContext::Of(context)), reply_(reply), restores_(restores) {
  call_->CountIn(&restores_->calls->active);
  const absl::Status status = Take(restores_->options.message_bytes);
  End(status);
  if (!status.ok()) return;
  MutexLock lock(&mutex_);
  reading_ = true;
  pace_ = absl::Now();
  WatchUntil(pace_ + restores_->options.timeout);
  StartRead(&received_);  // gRPC's reactions come after the handler's return
}

absl::Status RestoreReactor::Take(int64_t bytes) {
  RIVULET_RETURN_IF_ERROR(restores_->budget.Take(call_->caller().tenant, bytes));
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
  if (!status.ok()) Finish(call_->record().End(status, &restores_->calls->errors));
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
  RIVULET_ASSIGN_OR_RETURN(const ModelHold model, call_->FindModel(*restores_->models, name_));
  RIVULET_ASSIGN_OR_RETURN(
      idle_timeout_, ToIdleTimeout(message.has_idle_timeout() ? &message.idle_timeout() : nullptr));
  const Engine& engine = *model.engine();
  limits_ = engine.options().sessions;
  max_bytes_ = MaxSnapshotBytes(MostStateBytes(engine), limits_.most_tokens());
  bytes_.reserve(max_bytes_);  // once: growing would hold two copies; pages come as they are filled
  return absl::OkStatus();
}

absl::Status RestoreReactor::TakeChunk(const std::string& chunk) {
  if (chunk.size() > kSnapshotChunkBytes) {
    return InvalidField("CHUNK_TOO_LARGE", "chunk",
                        absl::StrCat("chunk holds ", chunk.size(), " bytes; allowed: at most ",
                                     kSnapshotChunkBytes));
  }
  if (bytes_.size() + chunk.size() > max_bytes_) {
    // Its first bytes say whether the server's limit of tokens is the cause.
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
  // Found again: it is not held while a client takes its time.
  RIVULET_ASSIGN_OR_RETURN(const ModelHold model, call_->FindModel(*restores_->models, name_));
  Engine* const engine = model.engine();
  RIVULET_ASSIGN_OR_RETURN(Snapshot snapshot, DecodeSnapshot(bytes_, restores_->key));
  std::string().swap(bytes_);  // decoded it is as large, and that is what the budget has now
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
    Finish(call_->record().End(status, &restores_->calls->errors));
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
    // Without a read the call may be over, and the server with what restores_ points to.
    if (expired && reading_) status = CheckPace();
  }
  End(status);
  Release();
}

absl::Status RestoreReactor::CheckPace() {
  const absl::Duration timeout = restores_->options.timeout;
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
  if (taken_ > 0) restores_->budget.Give(call_->caller().tenant, taken_);
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
