// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/inference_service.h"

#include <utility>

#include "model/base/error.h"
#include "server/grpc/caller.h"
#include "server/grpc/convert.h"
#include "server/grpc/engine_call.h"
#include "server/grpc/generate_reactor.h"

namespace rivulet {
namespace {

// A repeated Generate on a session would feed its prompt twice, and go on after tokens that the
// client never saw; at a position it cannot.
absl::Status CheckRepetition(const grpc::CallbackServerContext& context, const SessionRef& ref) {
  if (ref.position || !IsRepeated(context)) return absl::OkStatus();
  ErrorDetail detail;
  detail.reason = "POSITION_NEEDED";
  detail.field = "session.position";
  return MakeError(absl::StatusCode::kAborted,
                   "session.position is absent, and the client's library has sent this call before "
                   "without an answer: only a call at a position may be repeated.",
                   detail);
}

absl::StatusOr<GenerateSpec> SpecOf(const grpc::CallbackServerContext& context,
                                    const v1::GenerateRequest& request, const Model& model) {
  RIVULET_ASSIGN_OR_RETURN(GenerateSpec spec, ToGenerateSpec(request, model));
  spec.deadline = DeadlineOf(context);
  RIVULET_ASSIGN_OR_RETURN(spec.tenant, TenantOf(context));
  if (spec.session) {
    spec.session->tenant = spec.tenant;
    RIVULET_RETURN_IF_ERROR(CheckRepetition(context, *spec.session));
  }
  return spec;
}

absl::StatusOr<ScoreSpec> SpecOf(const grpc::CallbackServerContext& context,
                                 const v1::ScoreRequest& request, const Model& model) {
  RIVULET_ASSIGN_OR_RETURN(ScoreSpec spec, ToScoreSpec(request, model));
  RIVULET_ASSIGN_OR_RETURN(spec.tenant, TenantOf(context));
  spec.deadline = DeadlineOf(context);
  return spec;
}

}  // namespace

grpc::ServerWriteReactor<v1::GenerateReply>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  const auto model = models_->Find(request->model());
  if (!model.ok()) return GenerateReactor::Start(ModelHold(), *request, model.status(), calls_);
  return GenerateReactor::Start(*model, *request,
                                SpecOf(*context, *request, model->engine()->model()), calls_);
}

grpc::ServerUnaryReactor* InferenceService::Score(grpc::CallbackServerContext* context,
                                                  const v1::ScoreRequest* request,
                                                  v1::ScoreReply* reply) {
  const auto model = models_->Find(request->model());
  if (!model.ok()) return Answer(context, model.status());
  Engine* engine = model->engine();
  absl::StatusOr<ScoreSpec> spec = SpecOf(*context, *request, engine->model());
  if (!spec.ok()) return Answer(context, spec.status());
  auto* call = new EngineCall(*model, request, reply, calls_);
  call->Run([&](auto done) { return engine->Score(*std::move(spec), std::move(done)); },
            [](const ScoreResult& result, v1::ScoreReply* wire) { ToWire(result, wire); });
  return call;
}

grpc::ServerUnaryReactor* InferenceService::ListModels(grpc::CallbackServerContext* context,
                                                       const v1::ListModelsRequest*,
                                                       v1::ListModelsReply* reply) {
  for (const ModelHold& model : models_->served()) {
    *reply->add_models() = model.description().summary();
  }
  return Answer(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* InferenceService::GetModel(grpc::CallbackServerContext* context,
                                                     const v1::GetModelRequest* request,
                                                     v1::GetModelReply* reply) {
  const auto model = models_->Find(request->model());
  if (model.ok()) *reply = model->description();
  return Answer(context, model.status());
}

grpc::ServerUnaryReactor* InferenceService::GetLoad(grpc::CallbackServerContext* context,
                                                    const v1::GetLoadRequest* request,
                                                    v1::GetLoadReply* reply) {
  const auto add = [reply](const ModelHold& model) {
    v1::ModelLoad* load = reply->add_models();
    load->set_model(model.name());
    ToWire(model.engine()->GetLoad(), load);
  };
  if (request->model().empty()) {
    for (const ModelHold& model : models_->all()) add(model);
    return Answer(context, absl::OkStatus());
  }
  const auto model = models_->Find(request->model());
  if (model.ok()) add(*model);
  return Answer(context, model.status());
}

}  // namespace rivulet
