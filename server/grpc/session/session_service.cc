// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/session/session_service.h"

#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "model/base/error.h"
#include "rivulet/v1/session_service.grpc.pb.h"
#include "server/engine/session_calls.h"
#include "server/grpc/calls/caller.h"
#include "server/grpc/calls/guarded.h"
#include "server/grpc/generate/engine_call.h"
#include "server/grpc/wire/convert.h"
#include "server/grpc/wire/convert_session.h"
#include "server/grpc/wire/convert_text.h"

namespace rivulet {
namespace {

// The model and session of a call, its caller, and its deadline.
struct Job {
  Engine* engine;
  std::string tenant;
  std::shared_ptr<KeyAccount> key;  // or null
  absl::Time deadline;
};

// Puts results into replies, for EngineCall.
struct FillReply {
  absl::string_view model;

  template <typename Reply>
  void operator()(const SessionInfo& info, Reply* reply) const {
    ToWire(info, model, reply->mutable_session());
  }
  template <typename Reply>
  void operator()(const std::vector<SessionInfo>& infos, Reply* reply) const {
    for (const SessionInfo& info : infos) ToWire(info, model, reply->add_sessions());
  }
  void operator()(const SessionPage& page, v1::ListSessionsReply* reply) const {
    ToWire(page, model, reply);
  }
  void operator()(const ScoreResult& result, v1::AppendReply* reply) const {
    ToWire(result, reply);
  }
};

}  // namespace

SessionService::SessionService(const ServedModels* models, std::string snapshot_key,
                               const RestoreOptions& restore_options, ServerCalls* calls)
    : RpcService(v1::SessionService::service_full_name(), &calls->callers, Role::kClient,
                 &calls->errors),
      models_(models),
      calls_(calls),
      streams_{models, std::move(snapshot_key), restore_options, calls} {
  using Self = SessionService;
  Handle(this, &Self::OpenSession, &Self::Append, &Self::ForkSession, &Self::RewindSession,
         &Self::SnapshotSession, &Self::RestoreSession, &Self::CloseSession, &Self::GetSession,
         &Self::ListSessions);
}

// Finds the model; then submit(job, done) hands `done` to the engine or returns an error.
template <typename Request, typename Reply, typename Submit>
grpc::ServerUnaryReactor* SessionService::Run(grpc::CallbackServerContext* context,
                                              const Request* request, Reply* reply,
                                              const Submit& submit) {
  CallContext& call = CallContext::Of(context);
  const auto model = call.FindModel(*models_, request->model());
  if (!model.ok()) return Answer(context, model.status(), calls_);
  const Caller& caller = call.caller();
  const Job job{model->engine(), caller.tenant, caller.account(), DeadlineOf(*context)};
  auto* reactor = new EngineCall(*model, context, request, reply, calls_);
  reactor->Run([&](auto done) { return submit(job, std::move(done)); }, FillReply{model->name()});
  return reactor;
}

grpc::ServerUnaryReactor* SessionService::OpenSession(grpc::CallbackServerContext* context,
                                                      const v1::OpenSessionRequest* request,
                                                      v1::OpenSessionReply* reply) {
  return Run(context, request, reply, [&](const Job& job, auto done) -> absl::StatusOr<RequestId> {
    RIVULET_ASSIGN_OR_RETURN(OpenSpec spec, ToOpenSpec(*request));
    spec.tenant = job.tenant;
    spec.key = job.key;
    spec.deadline = job.deadline;
    return rivulet::OpenSession(job.engine, std::move(spec), std::move(done));
  });
}

grpc::ServerUnaryReactor* SessionService::Append(grpc::CallbackServerContext* context,
                                                 const v1::AppendRequest* request,
                                                 v1::AppendReply* reply) {
  const auto found = CallContext::Of(context).FindModel(*models_, request->model());
  if (!found.ok()) return Answer(context, found.status(), calls_);
  auto* call = new EngineCall(*found, context, request, reply, calls_);
  call->RunText(TextBytes(*request), [=, model = *found](const TextTurn& turn) {
    const auto submit = [&](auto done) -> absl::StatusOr<RequestId> {
      const Caller& caller = CallContext::Of(context).caller();
      RIVULET_ASSIGN_OR_RETURN(AppendSpec spec,
                               SpecOf(*context, caller, *request, model.engine()->model(), turn));
      return model.engine()->Append(std::move(spec), std::move(done));
    };
    call->Run(submit, FillReply{model.name()});
  });
  return call;
}

grpc::ServerUnaryReactor* SessionService::ForkSession(grpc::CallbackServerContext* context,
                                                      const v1::ForkSessionRequest* request,
                                                      v1::ForkSessionReply* reply) {
  return Run(context, request, reply, [&](const Job& job, auto done) -> absl::StatusOr<RequestId> {
    RIVULET_ASSIGN_OR_RETURN(ForkSpec spec, ToForkSpec(*request));
    spec.session.tenant = job.tenant;
    spec.key = job.key;
    spec.deadline = job.deadline;
    return rivulet::ForkSession(job.engine, std::move(spec), std::move(done));
  });
}

grpc::ServerUnaryReactor* SessionService::RewindSession(grpc::CallbackServerContext* context,
                                                        const v1::RewindSessionRequest* request,
                                                        v1::RewindSessionReply* reply) {
  return Run(context, request, reply, [&](const Job& job, auto done) -> absl::StatusOr<RequestId> {
    RIVULET_ASSIGN_OR_RETURN(SessionRef session, ToSessionRef(*request));
    session.tenant = job.tenant;
    return rivulet::RewindSession(job.engine, std::move(session), job.deadline, std::move(done));
  });
}

SnapshotWriter* SessionService::SnapshotSession(grpc::CallbackServerContext* context,
                                                const v1::SnapshotSessionRequest* request) {
  auto* reactor = new SnapshotReactor(context, &streams_);
  const auto start = [&]() -> absl::Status {
    CallContext& call = CallContext::Of(context);
    RIVULET_ASSIGN_OR_RETURN(const ModelHold model, call.FindModel(*models_, request->model()));
    RIVULET_ASSIGN_OR_RETURN(SessionRef session, ToSessionRef(*request));
    session.tenant = call.caller().tenant;
    return reactor->Submit(model, std::move(session), DeadlineOf(*context));
  };
  const absl::Status status = Guarded(start);
  if (!status.ok()) reactor->End(status);
  return reactor;
}

grpc::ServerReadReactor<Received<v1::RestoreSessionRequest>>* SessionService::RestoreSession(
    grpc::CallbackServerContext* context, v1::RestoreSessionReply* reply) {
  return new RestoreReactor(context, reply, &streams_);
}

grpc::ServerUnaryReactor* SessionService::CloseSession(grpc::CallbackServerContext* context,
                                                       const v1::CloseSessionRequest* request,
                                                       v1::CloseSessionReply* reply) {
  return Run(context, request, reply, [&](const Job& job, auto done) -> absl::StatusOr<RequestId> {
    RIVULET_ASSIGN_OR_RETURN(SessionRef session, ToSessionRef(request->session_id()));
    session.tenant = job.tenant;
    return rivulet::CloseSession(job.engine, std::move(session), std::move(done));
  });
}

grpc::ServerUnaryReactor* SessionService::GetSession(grpc::CallbackServerContext* context,
                                                     const v1::GetSessionRequest* request,
                                                     v1::GetSessionReply* reply) {
  return Run(context, request, reply, [&](const Job& job, auto done) -> absl::StatusOr<RequestId> {
    RIVULET_ASSIGN_OR_RETURN(SessionRef session, ToSessionRef(request->session_id()));
    session.tenant = job.tenant;
    return rivulet::GetSession(job.engine, std::move(session), job.deadline, std::move(done));
  });
}

grpc::ServerUnaryReactor* SessionService::ListSessions(grpc::CallbackServerContext* context,
                                                       const v1::ListSessionsRequest* request,
                                                       v1::ListSessionsReply* reply) {
  return Run(context, request, reply, [&](const Job& job, auto done) -> absl::StatusOr<RequestId> {
    RIVULET_ASSIGN_OR_RETURN(ListSpec spec, ToListSpec(*request));
    spec.tenant = job.tenant;
    spec.deadline = job.deadline;
    return rivulet::ListSessions(job.engine, spec, std::move(done));
  });
}

}  // namespace rivulet
