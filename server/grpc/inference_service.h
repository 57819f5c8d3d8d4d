// SPDX-License-Identifier: Apache-2.0
// InferenceService: the RPCs of rivulet.v1, for the models of one server.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rivulet/v1/inference.grpc.pb.h"
#include "server/engine/engine.h"
#include "server/grpc/active_calls.h"

namespace rivulet {

// A model to serve: its engine, borrowed, and "cpu" or "cuda".
struct ServedModel {
  Engine* engine = nullptr;
  std::string backend;
};

// Thread: any; gRPC calls it from its own threads. Nothing here waits: work is handed to an engine,
// and a reactor answers when it reports.
class InferenceService final : public v1::InferenceService::CallbackService {
 public:
  // The engines must outlive the gRPC server that this service is registered with. Names are
  // distinct.
  explicit InferenceService(const std::vector<ServedModel>& models);

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

  // Generate and Score calls that are not yet over.
  ActiveCalls& calls() { return calls_; }

 private:
  struct Entry {
    Engine* engine = nullptr;
    v1::GetModelReply description;
    const std::string& name() const { return description.summary().name(); }
  };

  // The model `name` names. Errors: INVALID_ARGUMENT ("" where several are served), NOT_FOUND.
  absl::StatusOr<const Entry*> Find(absl::string_view name) const;
  std::string ServedNames() const;

  std::vector<Entry> models_;
  ActiveCalls calls_;
};

}  // namespace rivulet
