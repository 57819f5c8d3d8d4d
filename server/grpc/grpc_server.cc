// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/grpc_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include "model/base/error.h"
#include "server/grpc/listener.h"

namespace rivulet {
namespace {

constexpr int kInProcessMessageBytes = 1 << 30;

}  // namespace

GrpcServer::GrpcServer(const ServedModels* models, const GrpcServerOptions& options)
    : inference_(models, &calls_),
      sessions_(models, options.snapshot_key, options.max_restore_bytes, &calls_),
      multiplex_(models, options.max_multiplexed, &calls_) {}

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Create(const ServedModels* models,
                                                               const GrpcServerOptions& options) {
  std::unique_ptr<GrpcServer> result(new GrpcServer(models, options));
  ListenerOptions listener;
  listener.address = options.listen;
  listener.setting = "listen";
  listener.reflection = options.reflection;
  listener.max_message_bytes =
      options.listen.empty() ? kInProcessMessageBytes : options.max_message_bytes;
  listener.max_streams = options.max_streams;
  grpc::ServerBuilder builder;
  SetUpListener(listener, &builder);
  if (options.max_connection_age != absl::InfiniteDuration()) {
    // The grace time stays gRPC's default, without end: no reply is cut.
    builder.AddChannelArgument(
        GRPC_ARG_MAX_CONNECTION_AGE_MS,
        static_cast<int>(absl::ToInt64Milliseconds(options.max_connection_age)));
  }
  builder.RegisterService(&result->inference_);
  builder.RegisterService(&result->sessions_);
  builder.RegisterService(&result->multiplex_);
  RIVULET_ASSIGN_OR_RETURN(result->server_, StartListener(listener, &builder, &result->port_));
  const std::vector<ModelHold> served = models->served();
  for (const ModelHold& model : served) result->SetServing(model.name(), true);
  if (served.empty()) result->SetServing("", false);
  return result;
}

GrpcServer::~GrpcServer() { Shutdown(absl::InfinitePast()); }

std::shared_ptr<grpc::Channel> GrpcServer::InProcessChannel() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  return server_->InProcessChannel(arguments);
}

void GrpcServer::SetServing(const std::string& service, bool serving) {
  server_->GetHealthCheckService()->SetServingStatus(service, serving);
}

void GrpcServer::StopServing() { server_->GetHealthCheckService()->Shutdown(); }

void GrpcServer::Shutdown(absl::Time deadline) {
  if (server_ == nullptr) return;
  StopServing();
  server_->Shutdown(absl::ToChronoTime(deadline));
  server_->Wait();
}

}  // namespace rivulet
