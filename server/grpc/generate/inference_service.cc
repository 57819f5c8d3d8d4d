// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/generate/inference_service.h"

#include <utility>

#include "model/base/error.h"
#include "rivulet/v1/inference.grpc.pb.h"
#include "server/grpc/calls/caller.h"
#include "server/grpc/calls/guarded.h"
#include "server/grpc/generate/engine_call.h"
#include "server/grpc/generate/generate_reactor.h"
#include "server/grpc/wire/convert.h"
#include "server/grpc/wire/convert_text.h"

namespace rivulet {
namespace {

void ToWire(const ConnectionCounts& counts, v1::ServerLoad* wire) {
  wire->set_connections(counts.open);
  wire->set_max_connections(counts.max_open);
  wire->set_connections_total(counts.accepted);
  wire->set_connections_refused_total(counts.refused);
  wire->set_connections_closed_total(counts.closed);
}

}  // namespace

InferenceService::InferenceService(const ServedModels* models, ServerCalls* calls,
                                   int max_message_bytes)
    : RpcService(v1::InferenceService::service_full_name(), &calls->callers, Role::kClient,
                 &calls->errors),
      models_(models),
      calls_(calls),
      max_message_bytes_(max_message_bytes) {
  Handle(this, &InferenceService::Generate, &InferenceService::Score, &InferenceService::Tokenize,
         &InferenceService::Detokenize, &InferenceService::ListModels, &InferenceService::GetModel,
         &InferenceService::GetLoad);
}

grpc::ServerWriteReactor<Serialized<v1::GenerateReply>>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  return GenerateReactor::Start(CallContext::Of(context).FindModel(*models_, request->model()),
                                context, *request, calls_);
}

grpc::ServerUnaryReactor* InferenceService::Score(grpc::CallbackServerContext* context,
                                                  const v1::ScoreRequest* request,
                                                  v1::ScoreReply* reply) {
  const auto found = CallContext::Of(context).FindModel(*models_, request->model());
  if (!found.ok()) return Answer(context, found.status(), calls_);
  auto* call = new EngineCall(*found, context, request, reply, calls_);
  call->RunText(TextBytes(*request), [=, model = *found](const TextTurn& turn) {
    const auto submit = [&](auto done) -> absl::StatusOr<RequestId> {
      const Caller& caller = CallContext::Of(context).caller();
      RIVULET_ASSIGN_OR_RETURN(ScoreSpec spec,
                               SpecOf(*context, caller, *request, model.engine()->model(), turn));
      return model.engine()->Score(std::move(spec), std::move(done));
    };
    call->Run(submit,
              [](const ScoreResult& result, v1::ScoreReply* wire) { ToWire(result, wire); });
  });
  return call;
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeReply* reply) {
  const auto found = CallContext::Of(context).FindModel(*models_, request->model());
  if (!found.ok()) return Answer(context, found.status(), calls_);
  auto* call = new EngineCall(*found, context, request, reply, calls_);
  call->RunText(TextBytes(*request), [=, model = *found](const TextTurn& turn) {
    call->EndText(Guarded([&] {
      return rivulet::Tokenize(*request, model.engine()->model(), turn.Stopped(), reply);
    }));
  });
  return call;
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeReply* reply) {
  const auto found = CallContext::Of(context).FindModel(*models_, request->model());
  if (!found.ok()) return Answer(context, found.status(), calls_);
  auto* call = new EngineCall(*found, context, request, reply, calls_);
  call->RunText(TextBytes(*request), [=, model = *found](const TextTurn& turn) {
    call->EndText(Guarded([&] {
      return rivulet::Detokenize(*request, model.engine()->model(), turn.Stopped(), reply);
    }));
  });
  return call;
}

grpc::ServerUnaryReactor* InferenceService::ListModels(grpc::CallbackServerContext* context,
                                                       const v1::ListModelsRequest*,
                                                       v1::ListModelsReply* reply) {
  const Caller& caller = CallContext::Of(context).caller();
  for (const ModelHold& model : models_->served(caller.models())) {
    *reply->add_models() = model.description().summary();
  }
  return Answer(context, absl::OkStatus(), calls_);
}

grpc::ServerUnaryReactor* InferenceService::GetModel(grpc::CallbackServerContext* context,
                                                     const v1::GetModelRequest* request,
                                                     v1::GetModelReply* reply) {
  const auto model = CallContext::Of(context).FindModel(*models_, request->model());
  if (model.ok()) {
    *reply = model->description();
    reply->mutable_limits()->set_max_message_bytes(max_message_bytes_);
  }
  return Answer(context, model.status(), calls_);
}

grpc::ServerUnaryReactor* InferenceService::GetLoad(grpc::CallbackServerContext* context,
                                                    const v1::GetLoadRequest* request,
                                                    v1::GetLoadReply* reply) {
  const auto add = [reply](const ModelHold& model) {
    v1::ModelLoad* load = reply->add_models();
    load->set_model(model.name());
    rivulet::ToWire(model.engine()->GetLoad(), load);
  };
  ToWire(calls_->connections.counts(), reply->mutable_server());
  auto& refusals = *reply->mutable_server()->mutable_refusals();
  for (const auto& [error, count] : calls_->errors.counts()) {
    const auto& [code, reason] = error;
    if (code == absl::StatusCode::kResourceExhausted) refusals[reason] = count;
  }
  if (request->model().empty()) {
    const Caller& caller = CallContext::Of(context).caller();
    for (const ModelHold& model : models_->all(caller.models())) add(model);
    return Answer(context, absl::OkStatus(), calls_);
  }
  const auto model = CallContext::Of(context).FindModel(*models_, request->model());
  if (model.ok()) add(*model);
  return Answer(context, model.status(), calls_);
}

}  // namespace rivulet
