// SPDX-License-Identifier: Apache-2.0
// The two calls of SessionService that stream: a snapshot out, a snapshot in. Coding and checking
// run on threads of gRPC, never on one of an engine.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rivulet/v1/session_service.pb.h"
#include "server/engine/session_calls.h"
#include "server/grpc/call_model.h"
#include "server/grpc/received.h"
#include "server/grpc/served_models.h"
#include "server/grpc/server_calls.h"

namespace rivulet {

// Largest piece of a snapshot in one message, either way.
inline constexpr size_t kSnapshotChunkBytes = size_t{1} << 20;

// One SnapshotSession call. Owns itself, as EngineCall does.
class SnapshotReactor final : public grpc::ServerWriteReactor<v1::SnapshotSessionReply> {
 public:
  // `key` and `calls` are borrowed and outlive the gRPC server.
  SnapshotReactor(const std::string& key, ServerCalls* calls);

  // Asks for the image of `session`, a session of `model`, which the handler holds too until it
  // returns. After an error the caller calls Finish.
  absl::Status Submit(ModelHold model, SessionRef session, absl::Time deadline);

  void OnSendInitialMetadataDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  void OnImage(absl::StatusOr<SessionImage> image);
  void WriteNext();

  const std::string& key_;
  ServerCalls* const calls_;
  std::optional<CallModel> model_;  // from Submit on; released once the image is coded
  RequestId id_ = 0;
  SessionImage image_;
  std::string bytes_;
  size_t sent_ = 0;
  v1::SnapshotSessionReply message_;
};

// What the snapshots that are on their way in may take together. Thread: any.
class RestoreBudget {
 public:
  explicit RestoreBudget(int64_t bytes) : bytes_(bytes) {}
  // False: they would take too much.
  bool Take(int64_t bytes) {
    if (taken_.fetch_add(bytes) + bytes <= bytes_) return true;
    taken_.fetch_sub(bytes);
    return false;
  }
  void Give(int64_t bytes) { taken_.fetch_sub(bytes); }

 private:
  const int64_t bytes_;
  std::atomic<int64_t> taken_ = 0;
};

// One RestoreSession call. Owns itself.
class RestoreReactor final : public grpc::ServerReadReactor<Received<v1::RestoreSessionRequest>> {
 public:
  // All is borrowed: `context` and `reply` for the call, the others outlive the gRPC server.
  RestoreReactor(grpc::CallbackServerContext* context, v1::RestoreSessionReply* reply,
                 const ServedModels* models, const std::string& key, RestoreBudget* budget,
                 ServerCalls* calls);

  void OnReadDone(bool ok) override;
  void OnDone() override;

 private:
  absl::Status Begin();
  absl::Status TakeChunk();
  // Decodes, checks and submits what has come.
  absl::Status Submit();

  grpc::CallbackServerContext* const context_;
  v1::RestoreSessionReply* const reply_;
  const ServedModels* const models_;
  const std::string& key_;
  RestoreBudget* const budget_;
  ServerCalls* const calls_;
  Received<v1::RestoreSessionRequest> received_;
  bool begun_ = false;   // the first message has come
  std::string name_;     // of the model, as the client gave it
  ModelHold submitted_;  // from Submit to the engine's answer
  std::optional<absl::Duration> idle_timeout_;
  std::string tenant_;
  size_t max_bytes_ = 0;
  std::string bytes_;
};

}  // namespace rivulet
