// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/inference_service.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "model/base/error.h"
#include "model/strict_json.h"
#include "server/grpc/convert.h"
#include "server/grpc/generate_reactor.h"
#include "server/grpc/status_map.h"

namespace rivulet {
namespace {

absl::Time Deadline(const grpc::CallbackServerContext& context) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

// One Score call. Owns itself: gRPC calls OnDone after every other reaction and after Finish, and
// Finish is called by the engine's last word (or by Submit's error), so nobody holds it after
// OnDone.
class ScoreReactor final : public grpc::ServerUnaryReactor {
 public:
  ScoreReactor(Engine* engine, const v1::ScoreRequest* request, v1::ScoreReply* reply,
               ActiveCalls* calls)
      : engine_(engine), request_(request), reply_(reply), calls_(calls) {
    calls_->Enter();
  }

  void Submit(ScoreSpec spec) {
    auto id = engine_->Score(std::move(spec), [this](absl::StatusOr<ScoreResult> result) {
      if (result.ok()) ToWire(*result, reply_);
      End(result.status());
    });
    if (id.ok()) {
      id_ = *id;  // gRPC orders the handler's end before OnCancel
    } else {
      End(id.status());
    }
  }

  void End(const absl::Status& status) { Finish(ToGrpc(NameWireField(status, *request_))); }

  void OnCancel() override { engine_->Cancel(id_); }

  void OnDone() override {
    calls_->Leave();
    delete this;
  }

 private:
  Engine* const engine_;
  const v1::ScoreRequest* const request_;
  v1::ScoreReply* const reply_;
  ActiveCalls* const calls_;
  RequestId id_ = 0;
};

}  // namespace

InferenceService::InferenceService(const std::vector<ServedModel>& models) {
  for (const ServedModel& model : models) {
    models_.push_back({model.engine, DescribeModel(*model.engine, model.backend)});
  }
}

std::string InferenceService::ServedNames() const {
  return absl::StrJoin(models_, ", ", [](std::string* out, const Entry& entry) {
    absl::StrAppend(out, "\"", entry.name(), "\"");
  });
}

absl::StatusOr<const InferenceService::Entry*> InferenceService::Find(
    absl::string_view name) const {
  if (name.empty()) {
    if (models_.size() == 1) return &models_.front();
    return InvalidField("MODEL_NAME_MISSING", "model",
                        absl::StrCat("model is empty, which is allowed only where one model is "
                                     "served; this server has ",
                                     ServedNames()));
  }
  for (const Entry& entry : models_) {
    if (name == entry.name()) return &entry;
  }
  ErrorDetail detail;
  detail.reason = "MODEL_NOT_FOUND";
  detail.field = "model";
  return MakeError(
      absl::StatusCode::kNotFound,
      absl::StrCat("model ", Quoted(name), " is not served here; this server has ", ServedNames()),
      detail);
}

grpc::ServerWriteReactor<v1::GenerateReply>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  const auto model = Find(request->model());
  if (!model.ok()) return GenerateReactor::Start(nullptr, *request, model.status(), &calls_);
  Engine* engine = (*model)->engine;
  absl::StatusOr<GenerateSpec> spec = ToGenerateSpec(*request, engine->model());
  if (spec.ok()) spec->deadline = Deadline(*context);
  return GenerateReactor::Start(engine, *request, std::move(spec), &calls_);
}

grpc::ServerUnaryReactor* InferenceService::Score(grpc::CallbackServerContext* context,
                                                  const v1::ScoreRequest* request,
                                                  v1::ScoreReply* reply) {
  const auto model = Find(request->model());
  if (!model.ok()) return Answer(context, model.status());
  absl::StatusOr<ScoreSpec> spec = ToScoreSpec(*request, (*model)->engine->model());
  if (!spec.ok()) return Answer(context, spec.status());
  spec->deadline = Deadline(*context);
  auto* reactor = new ScoreReactor((*model)->engine, request, reply, &calls_);
  reactor->Submit(*std::move(spec));
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::ListModels(grpc::CallbackServerContext* context,
                                                       const v1::ListModelsRequest*,
                                                       v1::ListModelsReply* reply) {
  for (const Entry& entry : models_) *reply->add_models() = entry.description.summary();
  return Answer(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* InferenceService::GetModel(grpc::CallbackServerContext* context,
                                                     const v1::GetModelRequest* request,
                                                     v1::GetModelReply* reply) {
  const auto model = Find(request->model());
  if (model.ok()) *reply = (*model)->description;
  return Answer(context, model.status());
}

grpc::ServerUnaryReactor* InferenceService::GetLoad(grpc::CallbackServerContext* context,
                                                    const v1::GetLoadRequest* request,
                                                    v1::GetLoadReply* reply) {
  const auto add = [reply](const Entry& entry) {
    v1::ModelLoad* load = reply->add_models();
    load->set_model(entry.name());
    ToWire(entry.engine->GetLoad(), load);
  };
  if (request->model().empty()) {
    for (const Entry& entry : models_) add(entry);
    return Answer(context, absl::OkStatus());
  }
  const auto model = Find(request->model());
  if (model.ok()) add(**model);
  return Answer(context, model.status());
}

}  // namespace rivulet
