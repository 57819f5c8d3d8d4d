// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/grpc_server.h"

#include <grpcpp/create_channel_posix.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpc/health/v1/health.pb.h"
#include "model/base/error.h"
#include "rivulet/v1/admin_service.grpc.pb.h"
#include "server/grpc/calls/call_context.h"
#include "server/grpc/calls/reflection_guard.h"
#include "server/grpc/connections/listener.h"
#include "server/process/descriptors.h"

namespace rivulet {
namespace {

using HealthStub = grpc::TemplatedGenericStub<grpc::health::v1::HealthCheckRequest,
                                              grpc::health::v1::HealthCheckResponse>;

// The size of the largest request.
int MessageBytes(const GrpcServerOptions& options) {
  constexpr int kInProcess = 1 << 30;
  return options.listen.empty() ? kInProcess : options.max_message_bytes;
}

}  // namespace

GrpcServer::GrpcServer(const ServedModels* models, const GrpcServerOptions& options)
    : calls_(options.keys),
      inference_(models, &calls_, MessageBytes(options)),
      sessions_(models, options.snapshot_key,
                {options.max_restore_bytes, options.max_message_bytes, options.restore_timeout},
                &calls_),
      multiplex_(models, options.max_multiplexed, &calls_),
      unknown_("admin-listen", {v1::AdminService::service_full_name()}, &calls_.callers,
               options.sinks) {
  calls_.sinks = options.sinks;
}

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Create(const ServedModels* models,
                                                               const GrpcServerOptions& options) {
  std::unique_ptr<GrpcServer> result(new GrpcServer(models, options));
  ListenerOptions listener;
  listener.address = options.listen;
  listener.setting = "listen";
  listener.tls = options.tls;
  listener.reflection = options.reflection;
  listener.max_message_bytes = MessageBytes(options);
  listener.max_streams = options.max_streams;
  listener.max_connections = options.max_connections;
  listener.max_connections_per_address = options.max_connections_per_address;
  listener.max_connection_idle = options.max_connection_idle;
  listener.max_connection_age = options.max_connection_age;
  grpc::ServerBuilder builder;
  SetUpListener(listener, &builder);
  GuardReflection(&result->calls_.callers, &result->calls_.errors, &builder);
  std::unique_ptr<grpc::ContextAllocator> counter;
  if (!options.listen.empty()) {
    Connections* connections = &result->connections();
    result->call_watch_ = std::make_unique<CallWatch>(
        options.max_streams,
        [connections](absl::string_view peer) { return connections->CutOff(peer); });
    counter = result->call_watch_->Counter();
  }
  builder.SetContextAllocator(
      std::make_unique<CallContexts>(std::move(counter), !options.listen.empty(), options.sinks));
  builder.RegisterService(&result->inference_);
  builder.RegisterService(&result->sessions_);
  builder.RegisterService(&result->multiplex_);
  builder.RegisterCallbackGenericService(&result->unknown_);
  RIVULET_ASSIGN_OR_RETURN(result->listener_,
                           Listener::Start(listener, &builder, &result->calls_.connections));
  if (result->port() != 0) {
    RIVULET_RETURN_IF_ERROR(
        CheckMaxConnections(options.max_connections, result->connections().counts().max_open));
  }
  const std::vector<ModelHold> served = models->served();
  for (const ModelHold& model : served) result->SetServing(model.name(), true);
  if (served.empty()) result->SetServing("", false);
  return result;
}

int GrpcServer::port() const { return listener_->port(); }

absl::Status CheckMaxConnections(int wanted, int64_t fit) {
  if (wanted <= fit) return absl::OkStatus();
  return InvalidField(
      "CONFIG_INVALID", "max-connections",
      absl::StrCat("max-connections is ", wanted, "; there are descriptors for ", fit,
                   ", as this process may open ", DescriptorLimit(), " (ulimit -n)"));
}

GrpcServer::~GrpcServer() { Shutdown(absl::InfinitePast()); }

std::shared_ptr<grpc::Channel> GrpcServer::InProcessChannel() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  return listener_->server().InProcessChannel(arguments);
}

absl::Status GrpcServer::CallSelf(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  RIVULET_ASSIGN_OR_RETURN(const int fd, listener_->acceptor()->ConnectToSelf(timeout));
  HealthStub stub(grpc::CreateInsecureChannelFromFd("rivulet-server itself", fd));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(deadline));
  grpc::CompletionQueue queue;
  // The one method that needs no key.
  const auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check",
                                          grpc::health::v1::HealthCheckRequest(), &queue);
  grpc::health::v1::HealthCheckResponse reply;
  grpc::Status status;
  call->StartCall();
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);  // ends by the deadline
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

void GrpcServer::SetServing(const std::string& service, bool serving) {
  listener_->server().GetHealthCheckService()->SetServingStatus(service, serving);
}

void GrpcServer::StopServing() { listener_->server().GetHealthCheckService()->Shutdown(); }

void GrpcServer::Shutdown(absl::Time deadline) {
  if (listener_ == nullptr) return;
  StopServing();
  listener_->Shutdown(deadline);
}

}  // namespace rivulet
