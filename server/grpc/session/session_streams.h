// SPDX-License-Identifier: Apache-2.0
// The two streaming calls of SessionService: a snapshot out and a snapshot in. Threads of gRPC
// decode and check, a thread of SnapshotStreams encodes, never a thread of an engine.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rivulet/v1/session_service.pb.h"
#include "server/base/memory_shares.h"
#include "server/base/mutex.h"
#include "server/engine/session_calls.h"
#include "server/grpc/calls/call_context.h"
#include "server/grpc/calls/served_models.h"
#include "server/grpc/calls/server_calls.h"
#include "server/grpc/calls/text_pool.h"
#include "server/grpc/wire/received.h"
#include "server/grpc/wire/serialized.h"
#include "server/sessions/snapshot.h"

namespace rivulet {

// The most bytes of a snapshot in one message, in either direction.
inline constexpr size_t kSnapshotChunkBytes = size_t{1} << 20;
// Bytes of an outgoing message: a client must take each message within the engine's reader_timeout.
inline constexpr size_t kSnapshotMessageBytes = size_t{256} << 10;

// The limits for snapshots.
struct RestoreOptions {
  int64_t memory_bytes = int64_t{512} << 20;   // of all incoming snapshots; the same for outgoing
  int64_t message_bytes = 4 << 20;             // the largest message that gRPC takes
  absl::Duration timeout = absl::Seconds(30);  // for each kRestorePaceBytes that come in
};

// What the SnapshotSession and RestoreSession calls of a server share. The pointers are borrowed
// and outlive the gRPC server.
struct SnapshotStreams {
  const ServedModels* models;
  std::string key;
  RestoreOptions options;
  ServerCalls* calls;
  MemoryShares incoming{options.memory_bytes, "RESTORE_MEMORY",
                        "snapshots that are being restored"};
  MemoryShares outgoing{options.memory_bytes, "SNAPSHOT_MEMORY", "snapshots that are being taken"};
  // Encodes snapshots: tenants take turns. `outgoing` limits the waiting bytes.
  TextLane encoder{TextLane::Options{.threads = 1, .waiting_bytes = int64_t{1} << 40}};
};

// Writes a snapshot to its client, kSnapshotMessageBytes in each message.
using SnapshotWriter = grpc::ServerWriteReactor<Serialized<v1::SnapshotSessionReply>>;

// One SnapshotSession call. It reserves memory for the session's state, which the session may
// forget meanwhile, its tokens and two pieces of the snapshot. If the client does not read, the
// call is ended. Owns itself, as RestoreReactor does.
class SnapshotReactor final : public SnapshotWriter {
 public:
  // Both are borrowed: `context` for the call.
  SnapshotReactor(grpc::CallbackServerContext* context, SnapshotStreams* streams);
  ~SnapshotReactor() override;

  // Asks for the image of `session` of `model`. The handler also holds the model until it returns.
  // After an error the caller calls End.
  absl::Status Submit(ModelHold model, SessionRef session, absl::Time deadline);
  // Ends the call with an error.
  void End(const absl::Status& status);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  void OnImage(absl::StatusOr<SessionImage> image);
  absl::Status Take();
  // Encodes the next piece on the encoder's thread, and then writes.
  void EncodeNext();
  absl::Status Encode();
  void WriteNext();

  void WatchUntil(absl::Time time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CutUnread(bool expired);
  void Release();

  CallContext* const call_;
  grpc_call* const grpc_call_;  // a reference: valid after OnDone
  SnapshotStreams* const streams_;
  absl::Duration patience_;  // the engine's reader_timeout
  int64_t taken_ = 0;        // of the budget
  CallModel model_;          // from Submit on; released once the encoder is made
  SessionImage image_;
  std::optional<SnapshotEncoder> encoder_;
  std::string piece_;
  size_t sent_ = 0;  // of piece_
  Serialized<v1::SnapshotSessionReply> message_;

  std::atomic<int> holders_ = 1;  // gRPC, and alarm_ while it runs
  Mutex mutex_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  bool watched_ ABSL_GUARDED_BY(mutex_) = false;  // alarm_ runs
  std::optional<absl::Time> writing_since_ ABSL_GUARDED_BY(mutex_);
  grpc::Alarm alarm_ ABSL_GUARDED_BY(mutex_);
};

// In every RestoreOptions::timeout an incoming snapshot must bring kRestorePaceBytes, in
// whole messages.
inline constexpr size_t kRestorePaceBytes = size_t{64} << 10;

// One RestoreSession call. It reserves memory for one message from the start, because gRPC may hold
// an incomplete message, and then for the bytes that have arrived. If the client is too slow, the
// call is ended. Owns itself: deleted once gRPC is done with the call (OnDone) and alarm_ does not
// run. Thread: On* on threads of gRPC.
class RestoreReactor final : public grpc::ServerReadReactor<Received<v1::RestoreSessionRequest>> {
 public:
  // All are borrowed: `context` and `reply` for the call.
  RestoreReactor(grpc::CallbackServerContext* context, v1::RestoreSessionReply* reply,
                 SnapshotStreams* streams);

  void OnReadDone(bool ok) override;
  void OnDone() override;

 private:
  absl::Status Take(int64_t bytes);
  absl::Status TakeMessage();
  absl::Status Begin();
  absl::Status TakeChunk(const std::string& chunk);
  // Decodes, checks and submits the snapshot; the engine's answer then ends the call.
  absl::Status Submit();
  // Ends the call with an error.
  void End(const absl::Status& status);

  void WatchUntil(absl::Time time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CutSlow(bool expired);
  // If its client is too slow: the error that ends the call, which the caller sends.
  absl::Status CheckPace() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Release();

  CallContext* const call_;
  v1::RestoreSessionReply* const reply_;
  SnapshotStreams* const streams_;
  int64_t taken_ = 0;  // of the budget

  Received<v1::RestoreSessionRequest> received_;
  bool begun_ = false;   // the first message has come
  std::string name_;     // of the model, as the client gave it
  ModelHold submitted_;  // from Submit to the engine's answer
  std::optional<absl::Duration> idle_timeout_;
  size_t max_bytes_ = 0;
  SessionLimits limits_;
  std::string bytes_;       // the bytes that have arrived
  size_t paced_bytes_ = 0;  // bytes that had come at pace_

  std::atomic<int> holders_ = 1;  // gRPC, and alarm_ while it runs
  Mutex mutex_;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;  // whoever resets it ends the call
  int readers_ ABSL_GUARDED_BY(mutex_) = 0;       // threads in OnReadDone
  absl::Time pace_ ABSL_GUARDED_BY(mutex_);  // when it last brought kRestorePaceBytes, or began
  grpc::Alarm alarm_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rivulet
