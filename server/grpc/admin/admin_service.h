// SPDX-License-Identifier: Apache-2.0
// AdminService, on its own listener, which clients never reach: operators load and unload models
// and change the log level.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rivulet/v1/admin_service.grpc.pb.h"
#include "rivulet/v1/model.pb.h"
#include "server/grpc/calls/rpc_service.h"
#include "server/grpc/calls/served_models.h"
#include "server/grpc/calls/unknown_methods.h"
#include "server/grpc/connections/connections.h"
#include "server/grpc/connections/tls_files.h"

namespace rivulet {

class Listener;

// The operations of the server that AdminService calls. Both return when all is done. Errors: as
// the RPCs. Thread: any.
class ModelControl {
 public:
  virtual ~ModelControl() = default;
  virtual absl::StatusOr<v1::ModelSummary> Load(const std::string& name) = 0;
  // `drain_timeout` absent: the server's setting.
  struct Unloaded {
    bool all_ended = false;   // every running request ended by itself
    int sessions_closed = 0;  // client sessions that were open
  };
  virtual absl::StatusOr<Unloaded> Unload(const std::string& name,
                                          std::optional<absl::Duration> drain_timeout) = 0;
};

// Each call takes a thread, unlike clients' calls: there are few calls, and they take seconds.
class AdminService final : public RpcService {
 public:
  // Both are borrowed.
  AdminService(ModelControl* control, const Callers* callers)
      : RpcService(v1::AdminService::service_full_name(), callers, Role::kAdmin, nullptr),
        control_(control) {
    Handle(this, &AdminService::LoadModel, &AdminService::UnloadModel, &AdminService::GetLogLevel,
           &AdminService::SetLogLevel);
  }

  grpc::ServerUnaryReactor* LoadModel(grpc::CallbackServerContext* context,
                                      const v1::LoadModelRequest* request,
                                      v1::LoadModelReply* reply);
  grpc::ServerUnaryReactor* UnloadModel(grpc::CallbackServerContext* context,
                                        const v1::UnloadModelRequest* request,
                                        v1::UnloadModelReply* reply);

  grpc::ServerUnaryReactor* GetLogLevel(grpc::CallbackServerContext* context,
                                        const v1::GetLogLevelRequest* request,
                                        v1::GetLogLevelReply* reply);
  grpc::ServerUnaryReactor* SetLogLevel(grpc::CallbackServerContext* context,
                                        const v1::SetLogLevelRequest* request,
                                        v1::SetLogLevelReply* reply);

  // Waits until every answer was sent.
  void WaitUntilIdle() { calls_.WaitUntilNone(absl::InfiniteFuture()); }

 private:
  class Call;

  grpc::ServerUnaryReactor* OnAThread(grpc::CallbackServerContext* context,
                                      std::function<absl::Status()> work);

  ModelControl* const control_;
  ActiveCalls calls_;
};

// Thread: any, but Shutdown and the destructor once.
class AdminServer {
 public:
  // The server serves once Create has returned. `control`, `keys` (null: callers need none) and the
  // sinks must outlive this object; `listen` is HOST:PORT. Errors: INVALID_ARGUMENT (address, TLS
  // files), NOT_FOUND (TLS files), UNAVAILABLE (address in use or not of this machine).
  static absl::StatusOr<std::unique_ptr<AdminServer>> Create(ModelControl* control,
                                                             const std::string& listen,
                                                             const TlsFiles& tls, bool reflection,
                                                             KeyRing* keys,
                                                             const RequestSinks& sinks);
  ~AdminServer();

  int port() const;
  // Takes no more calls and waits for the end of running calls. REQUIRES: `control` already refuses
  // new calls.
  void Shutdown();

 private:
  AdminServer(ModelControl* control, KeyRing* keys, const RequestSinks& sinks);

  const Callers callers_;
  AdminService service_;
  UnknownMethods unknown_;
  Connections connections_;
  std::unique_ptr<Listener> listener_;
};

}  // namespace rivulet
