// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/admin/admin_service.h"

#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/grpcpp.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"
#include "model/model_name.h"
#include "rivulet/v1/inference.grpc.pb.h"
#include "rivulet/v1/multiplex.grpc.pb.h"
#include "rivulet/v1/session_service.grpc.pb.h"
#include "server/grpc/calls/call_context.h"
#include "server/grpc/calls/guarded.h"
#include "server/grpc/calls/reflection_guard.h"
#include "server/grpc/connections/listener.h"
#include "server/grpc/wire/convert_session.h"
#include "server/log.h"
#include "server/process/call_note.h"

namespace rivulet {
namespace {

constexpr int kMaxMessageBytes = 64 << 10;
constexpr int kMaxStreams = 16;
constexpr int kAdminConnections = 16;
constexpr absl::Duration kMaxDrain = absl::Hours(24);
constexpr absl::Duration kDeliveryTime = absl::Seconds(1);  // for the last answers to arrive
constexpr absl::Duration kAdminCloseTime = absl::Milliseconds(100);

absl::Status CheckName(const std::string& name) {
  if (IsModelName(name)) return absl::OkStatus();
  return InvalidField("MODEL_NAME_MALFORMED", "model",
                      absl::StrCat("model is ", Quoted(name), "; allowed: ", kModelNamePattern));
}

absl::StatusOr<std::optional<absl::Duration>> DrainTimeout(const v1::UnloadModelRequest& request) {
  if (!request.has_drain_timeout()) return std::optional<absl::Duration>();
  RIVULET_ASSIGN_OR_RETURN(
      const absl::Duration drain,
      ToDuration("DRAIN_TIMEOUT_OUT_OF_RANGE", "drain_timeout", request.drain_timeout()));
  if (drain >= absl::ZeroDuration() && drain <= kMaxDrain) return std::optional(drain);
  return InvalidField(
      "DRAIN_TIMEOUT_OUT_OF_RANGE", "drain_timeout",
      absl::StrCat("drain_timeout is ", absl::FormatDuration(drain), "; allowed: 0 to 86400 s"));
}

constexpr std::pair<v1::LogLevel, LogLevel> kLogLevels[] = {
    {v1::LOG_LEVEL_DEBUG, LogLevel::kDebug},
    {v1::LOG_LEVEL_INFO, LogLevel::kInfo},
    {v1::LOG_LEVEL_WARNING, LogLevel::kWarning},
    {v1::LOG_LEVEL_ERROR, LogLevel::kError}};

v1::LogLevel ToWire(LogLevel level) {
  for (const auto& [wire, own] : kLogLevels) {
    if (own == level) return wire;
  }
  return v1::LOG_LEVEL_UNSPECIFIED;
}

}  // namespace

// One call, until its answer has left.
class AdminService::Call final : public grpc::ServerUnaryReactor {
 public:
  explicit Call(CallContext* context) : context_(context) {}
  void End(const absl::Status& status) {
    if (status.ok()) context_->BeforeMessage();
    Finish(context_->record().End(status, nullptr));
  }
  void OnDone() override { delete this; }

 private:
  CallContext* const context_;
};

grpc::ServerUnaryReactor* AdminService::OnAThread(grpc::CallbackServerContext* context,
                                                  std::function<absl::Status()> work) {
  CallContext::Of(context).CountIn(&calls_);
  auto* const call = new Call(&CallContext::Of(context));
  // Nothing joins it: its last act is Finish, and OnDone may run within that.
  std::thread([call, work = std::move(work), name = CallNote::Current()] {
    const CallNote note(name);
    call->End(Guarded(work));
  }).detach();
  return call;
}

grpc::ServerUnaryReactor* AdminService::LoadModel(grpc::CallbackServerContext* context,
                                                  const v1::LoadModelRequest* request,
                                                  v1::LoadModelReply* reply) {
  return OnAThread(context, [this, context, request, reply]() -> absl::Status {
    RIVULET_RETURN_IF_ERROR(CheckName(request->model()));
    CallContext::Of(context).record().SetModel(request->model());
    RIVULET_ASSIGN_OR_RETURN(*reply->mutable_model(), control_->Load(request->model()));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::UnloadModel(grpc::CallbackServerContext* context,
                                                    const v1::UnloadModelRequest* request,
                                                    v1::UnloadModelReply* reply) {
  return OnAThread(context, [this, context, request, reply]() -> absl::Status {
    RIVULET_RETURN_IF_ERROR(CheckName(request->model()));
    CallContext::Of(context).record().SetModel(request->model());
    RIVULET_ASSIGN_OR_RETURN(const std::optional<absl::Duration> drain, DrainTimeout(*request));
    RIVULET_ASSIGN_OR_RETURN(const ModelControl::Unloaded unloaded,
                             control_->Unload(request->model(), drain));
    reply->set_all_ended(unloaded.all_ended);
    reply->set_sessions_closed(unloaded.sessions_closed);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::GetLogLevel(grpc::CallbackServerContext* context,
                                                    const v1::GetLogLevelRequest*,
                                                    v1::GetLogLevelReply* reply) {
  return OnAThread(context, [reply] {
    reply->set_level(ToWire(rivulet::GetLogLevel()));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::SetLogLevel(grpc::CallbackServerContext* context,
                                                    const v1::SetLogLevelRequest* request,
                                                    v1::SetLogLevelReply* reply) {
  return OnAThread(context, [request, reply]() -> absl::Status {
    for (const auto& [wire, level] : kLogLevels) {
      if (wire != request->level()) continue;
      reply->set_previous(ToWire(ChangeLogLevel(level)));
      return absl::OkStatus();
    }
    return InvalidField("LOG_LEVEL_UNKNOWN", "level",
                        absl::StrCat("level is ", static_cast<int>(request->level()),
                                     "; allowed: LOG_LEVEL_DEBUG (1), LOG_LEVEL_INFO (2), "
                                     "LOG_LEVEL_WARNING (3) and LOG_LEVEL_ERROR (4)"));
  });
}

AdminServer::AdminServer(ModelControl* control, KeyRing* keys, const RequestSinks& sinks)
    : callers_(keys),
      service_(control, &callers_),
      unknown_("listen",
               {v1::InferenceService::service_full_name(), v1::SessionService::service_full_name(),
                v1::MultiplexService::service_full_name(), "grpc.health.v1.Health"},
               &callers_, sinks) {}

AdminServer::~AdminServer() { Shutdown(); }

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Create(ModelControl* control,
                                                                 const std::string& listen,
                                                                 const TlsFiles& tls,
                                                                 bool reflection, KeyRing* keys,
                                                                 const RequestSinks& sinks) {
  std::unique_ptr<AdminServer> result(new AdminServer(control, keys, sinks));
  const ListenerOptions options{listen,      "admin-listen",   tls, reflection, kMaxMessageBytes,
                                kMaxStreams, kAdminConnections};
  grpc::ServerBuilder builder;
  SetUpListener(options, &builder);
  GuardReflection(&result->callers_, nullptr, &builder);
  // Only the listener for clients answers health.
  builder.SetOption(std::make_unique<grpc::HealthCheckServiceServerBuilderOption>(nullptr));
  builder.SetContextAllocator(std::make_unique<CallContexts>(nullptr, true, sinks));
  builder.RegisterService(&result->service_);
  builder.RegisterCallbackGenericService(&result->unknown_);
  RIVULET_ASSIGN_OR_RETURN(result->listener_,
                           Listener::Start(options, &builder, &result->connections_));
  return result;
}

int AdminServer::port() const { return listener_->port(); }

void AdminServer::Shutdown() {
  if (listener_ == nullptr) return;
  // A load cannot be given up halfway; an unload ends with the drain.
  service_.WaitUntilIdle();
  connections_.AwaitDelivered(absl::Now() + kDeliveryTime);
  // Idle connections are cut: their clients may never read the end of the connection.
  listener_->Shutdown(absl::Now() + kAdminCloseTime);
}

}  // namespace rivulet
