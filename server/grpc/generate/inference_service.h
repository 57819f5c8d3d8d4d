// SPDX-License-Identifier: Apache-2.0
// InferenceService: the RPCs of the service, for the models of one server.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "rivulet/v1/inference.pb.h"
#include "server/grpc/calls/rpc_service.h"
#include "server/grpc/calls/served_models.h"
#include "server/grpc/calls/server_calls.h"
#include "server/grpc/wire/serialized.h"

namespace rivulet {

// Thread: any; gRPC calls it from its own threads. Nothing here waits: an engine does the work,
// TextPool converts long texts, and a reactor answers when they report.
class InferenceService final : public RpcService {
 public:
  // `calls` counts Generate, Score, Tokenize and Detokenize. Both, and the engines, must outlive
  // the gRPC server that this service is registered with. `max_message_bytes`: of a request.
  InferenceService(const ServedModels* models, ServerCalls* calls, int max_message_bytes);

  grpc::ServerWriteReactor<Serialized<v1::GenerateReply>>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request);
  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext* context,
                                  const v1::ScoreRequest* request, v1::ScoreReply* reply);
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request, v1::TokenizeReply* reply);
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeReply* reply);
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsReply* reply);
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest* request, v1::GetModelReply* reply);
  grpc::ServerUnaryReactor* GetLoad(grpc::CallbackServerContext* context,
                                    const v1::GetLoadRequest* request, v1::GetLoadReply* reply);

 private:
  const ServedModels* const models_;
  ServerCalls* const calls_;
  const int max_message_bytes_;  // of a request
};

}  // namespace rivulet
