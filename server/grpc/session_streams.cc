// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/session_streams.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/snapshot.h"
#include "server/grpc/caller.h"
#include "server/grpc/convert_session.h"
#include "server/grpc/status_map.h"

namespace rivulet {
namespace {

// Of a call whose client has gone.
grpc::Status Gone() { return ToGrpc(absl::CancelledError("The client has gone."), nullptr); }

}  // namespace

SnapshotReactor::SnapshotReactor(const std::string& key, ServerCalls* calls)
    : key_(key), calls_(calls) {
  calls_->active.Enter();
}

absl::Status SnapshotReactor::Submit(ModelHold model, SessionRef session, absl::Time deadline) {
  Engine* const engine = model.engine();
  model_.emplace(std::move(model));
  RIVULET_ASSIGN_OR_RETURN(id_,  // gRPC orders the handler's end before OnCancel
                           rivulet::SnapshotSession(engine, std::move(session), deadline,
                                                    [this](absl::StatusOr<SessionImage> image) {
                                                      OnImage(std::move(image));
                                                    }));
  return absl::OkStatus();
}

// On the engine's emitter thread, which has other replies to serve: gRPC's reaction to the initial
// metadata comes on a thread of its own.
void SnapshotReactor::OnImage(absl::StatusOr<SessionImage> image) {
  if (!image.ok()) {
    model_->Release();
    return Finish(ToGrpc(image.status(), &calls_->refusals));
  }
  image_ = *std::move(image);
  StartSendInitialMetadata();
}

void SnapshotReactor::OnSendInitialMetadataDone(bool ok) {
  if (ok) {
    const Engine& engine = *model_->engine();
    bytes_ = EncodeSnapshot(ToSnapshot(image_, engine.model(), engine.limits().numerics_id), key_);
  }
  model_->Release();
  if (!ok) return Finish(Gone());
  image_ = SessionImage();
  WriteNext();
}

void SnapshotReactor::WriteNext() {
  const size_t count = std::min(kSnapshotChunkBytes, bytes_.size() - sent_);
  message_.set_chunk(bytes_.substr(sent_, count));
  sent_ += count;
  if (sent_ < bytes_.size()) {
    StartWrite(&message_);
  } else {
    StartWriteAndFinish(&message_, grpc::WriteOptions(), grpc::Status::OK);
  }
}

void SnapshotReactor::OnWriteDone(bool ok) {
  if (!ok) return Finish(Gone());
  WriteNext();
}

void SnapshotReactor::OnCancel() {
  if (model_.has_value()) model_->Cancel(id_);
}

void SnapshotReactor::OnDone() {
  calls_->active.Leave();
  delete this;
}

RestoreReactor::RestoreReactor(grpc::CallbackServerContext* context, v1::RestoreSessionReply* reply,
                               const ServedModels* models, const std::string& key,
                               RestoreBudget* budget, ServerCalls* calls)
    : context_(context), reply_(reply), models_(models), key_(key), budget_(budget), calls_(calls) {
  calls_->active.Enter();
  StartRead(&received_);
}

void RestoreReactor::OnReadDone(bool ok) {
  if (!ok && context_->IsCancelled()) return Finish(Gone());
  absl::Status status = ok ? received_.error : absl::OkStatus();
  if (status.ok() && !begun_) status = Begin();
  if (status.ok()) status = ok ? TakeChunk() : Submit();
  if (!status.ok()) return Finish(ToGrpc(status, &calls_->refusals));
  if (ok) StartRead(&received_);
}

absl::Status RestoreReactor::Begin() {
  begun_ = true;
  const v1::RestoreSessionRequest& message = received_.message;
  name_ = message.model();
  RIVULET_ASSIGN_OR_RETURN(const ModelHold model, models_->Find(name_));
  RIVULET_ASSIGN_OR_RETURN(tenant_, TenantOf(*context_));
  RIVULET_ASSIGN_OR_RETURN(
      idle_timeout_, ToIdleTimeout(message.has_idle_timeout() ? &message.idle_timeout() : nullptr));
  const Engine& engine = *model.engine();
  max_bytes_ = MaxSnapshotBytes(engine.model().config(), engine.options().sessions.max_tokens);
  bytes_.reserve(max_bytes_);  // once: growing would hold two copies; pages come as they are filled
  return absl::OkStatus();
}

absl::Status RestoreReactor::TakeChunk() {
  const std::string& chunk = received_.message.chunk();
  if (chunk.size() > kSnapshotChunkBytes) {
    return InvalidField("CHUNK_TOO_LARGE", "chunk",
                        absl::StrCat("chunk holds ", chunk.size(), " bytes; allowed: at most ",
                                     kSnapshotChunkBytes));
  }
  ErrorDetail detail;
  if (bytes_.size() + chunk.size() > max_bytes_) {
    detail.reason = "SNAPSHOT_TOO_LARGE";
    return MakeError(absl::StatusCode::kOutOfRange,
                     absl::StrCat("the snapshot has more than ", max_bytes_,
                                  " bytes, which no session of this model has"),
                     detail);
  }
  if (!budget_->Take(static_cast<int64_t>(chunk.size()))) {
    detail.reason = "RESTORE_MEMORY";
    detail.retry_after = absl::Seconds(1);
    return MakeError(absl::StatusCode::kResourceExhausted,
                     "The snapshots that are being restored take all the memory that they may.",
                     detail);
  }
  bytes_.append(chunk);
  return absl::OkStatus();
}

absl::Status RestoreReactor::Submit() {
  // Found again: it is not held while a client takes its time.
  RIVULET_ASSIGN_OR_RETURN(const ModelHold model, models_->Find(name_));
  Engine* const engine = model.engine();
  RIVULET_ASSIGN_OR_RETURN(Snapshot snapshot, DecodeSnapshot(bytes_, key_));
  RIVULET_RETURN_IF_ERROR(CheckSnapshot(snapshot, engine->model(), tenant_));
  reply_->set_same_numerics(snapshot.numerics_id == engine->limits().numerics_id);
  RestoreSpec spec = ToRestoreSpec(std::move(snapshot));
  spec.tenant = tenant_;
  spec.idle_timeout = idle_timeout_;
  spec.deadline = DeadlineOf(*context_);
  submitted_ = model;
  const auto done = [this](const absl::StatusOr<SessionInfo>& info) {
    if (info.ok()) ToWire(*info, submitted_.name(), reply_->mutable_session());
    submitted_.Release();
    Finish(ToGrpc(info.status(), &calls_->refusals));
  };
  return rivulet::RestoreSession(engine, std::move(spec), done).status();
}

void RestoreReactor::OnDone() {
  budget_->Give(static_cast<int64_t>(bytes_.size()));
  calls_->active.Leave();
  delete this;
}

}  // namespace rivulet
