// SPDX-License-Identifier: Apache-2.0
// InferenceService: its RPCs, for the models of one server.
#pragma once

#include "rivulet/v1/inference.grpc.pb.h"
#include "server/grpc/active_calls.h"
#include "server/grpc/served_models.h"

namespace rivulet {

// Thread: any; gRPC calls it from its own threads. Nothing here waits: work is handed to an engine,
// and a reactor answers when it reports.
class InferenceService final : public v1::InferenceService::CallbackService {
 public:
  // `calls` counts Generate and Score. Both, and the engines, must outlive the gRPC server that
  // this service is registered with.
  InferenceService(const ServedModels* models, ActiveCalls* calls)
      : models_(models), calls_(calls) {}

  grpc::ServerWriteReactor<v1::GenerateReply>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext* context,
                                  const v1::ScoreRequest* request, v1::ScoreReply* reply) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsReply* reply) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest* request,
                                     v1::GetModelReply* reply) override;
  grpc::ServerUnaryReactor* GetLoad(grpc::CallbackServerContext* context,
                                    const v1::GetLoadRequest* request,
                                    v1::GetLoadReply* reply) override;

 private:
  const ServedModels* const models_;
  ActiveCalls* const calls_;
};

}  // namespace rivulet
