// SPDX-License-Identifier: Apache-2.0
// SessionService: the RPCs of the service, for the models of one server.
#pragma once

#include <string>
#include <utility>

#include "rivulet/v1/session_service.pb.h"
#include "server/grpc/calls/rpc_service.h"
#include "server/grpc/calls/served_models.h"
#include "server/grpc/calls/server_calls.h"
#include "server/grpc/session/session_streams.h"

namespace rivulet {

// Thread: any; gRPC calls it from its own threads. As in InferenceService, nothing here waits.
class SessionService final : public RpcService {
 public:
  // `calls` counts every call. `snapshot_key`: see EncodeSnapshot. Borrowed arguments must outlive
  // the gRPC server that this service is registered with.
  SessionService(const ServedModels* models, std::string snapshot_key,
                 const RestoreOptions& restore_options, ServerCalls* calls);

  grpc::ServerUnaryReactor* OpenSession(grpc::CallbackServerContext* context,
                                        const v1::OpenSessionRequest* request,
                                        v1::OpenSessionReply* reply);
  grpc::ServerUnaryReactor* Append(grpc::CallbackServerContext* context,
                                   const v1::AppendRequest* request, v1::AppendReply* reply);
  grpc::ServerUnaryReactor* ForkSession(grpc::CallbackServerContext* context,
                                        const v1::ForkSessionRequest* request,
                                        v1::ForkSessionReply* reply);
  grpc::ServerUnaryReactor* RewindSession(grpc::CallbackServerContext* context,
                                          const v1::RewindSessionRequest* request,
                                          v1::RewindSessionReply* reply);
  SnapshotWriter* SnapshotSession(grpc::CallbackServerContext* context,
                                  const v1::SnapshotSessionRequest* request);
  grpc::ServerReadReactor<Received<v1::RestoreSessionRequest>>* RestoreSession(
      grpc::CallbackServerContext* context, v1::RestoreSessionReply* reply);
  grpc::ServerUnaryReactor* CloseSession(grpc::CallbackServerContext* context,
                                         const v1::CloseSessionRequest* request,
                                         v1::CloseSessionReply* reply);
  grpc::ServerUnaryReactor* GetSession(grpc::CallbackServerContext* context,
                                       const v1::GetSessionRequest* request,
                                       v1::GetSessionReply* reply);
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context,
                                         const v1::ListSessionsRequest* request,
                                         v1::ListSessionsReply* reply);

 private:
  template <typename Request, typename Reply, typename Submit>
  grpc::ServerUnaryReactor* Run(grpc::CallbackServerContext* context, const Request* request,
                                Reply* reply, const Submit& submit);

  const ServedModels* const models_;
  ServerCalls* const calls_;
  SnapshotStreams streams_;
};

}  // namespace rivulet
