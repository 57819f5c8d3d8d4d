// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/connections/listener.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "server/config/server_config.h"
#include "server/grpc/connections/grpc_setup.h"
#include "server/grpc/connections/listening_sockets.h"
#include "server/grpc/connections/tls_credentials.h"
#include "server/grpc/connections/tls_failures.h"
#include "server/process/descriptors.h"

namespace rivulet {
namespace {

constexpr int kMaxConnections = 65536;  // by default: each costs memory, too

// The linked reflection library turns reflection on for every server; this sets it for one.
class ReflectionOption final : public grpc::ServerBuilderOption {
 public:
  explicit ReflectionOption(bool on) : on_(on) {}
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    auto reflection = std::make_unique<grpc::reflection::ProtoServerReflectionPlugin>();
    const std::string name = reflection->name();
    plugins->erase(std::remove_if(plugins->begin(), plugins->end(),
                                  [&name](const auto& plugin) { return plugin->name() == name; }),
                   plugins->end());
    if (on_) plugins->push_back(std::move(reflection));
  }

 private:
  const bool on_;
};

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(std::min<int64_t>(absl::ToInt64Milliseconds(duration), INT_MAX));
}

// The limit of `options`, as far as descriptors allow.
int MaxConnections(const ListenerOptions& options) {
  const int64_t most = options.max_connections > 0 ? options.max_connections : kMaxConnections;
  return static_cast<int>(std::min(
      most, ConnectionsThatFit(DescriptorLimit(), OpenDescriptors(), kDescriptorsPerConnection)));
}

absl::Status CannotListen(const ListenerOptions& options, absl::string_view why) {
  ErrorDetail detail;
  detail.reason = "ADDRESS_UNAVAILABLE";
  detail.field = options.setting;
  return MakeError(absl::StatusCode::kUnavailable,
                   absl::StrCat("cannot listen on ", options.address, ", the value of ",
                                options.setting, ": ", why),
                   detail);
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> Credentials(const TlsFiles& tls,
                                                                     Connections* connections) {
  if (!tls.given()) return grpc::InsecureServerCredentials();
  return MakeTlsCredentials(tls,
                            [connections](absl::Time end) { connections->SetCertificateEnd(end); });
}

// A function that hands sockets to gRPC.
Acceptor::Take HandTo(grpc::experimental::ExternalConnectionAcceptor* external) {
  return [external](int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = fd;
    WithTlsPeer(fd, [&] { external->HandleNewConnection(&connection); });
  };
}

}  // namespace

void SetUpListener(const ListenerOptions& options, grpc::ServerBuilder* builder) {
  SetUpGrpc();
  builder->SetMaxReceiveMessageSize(options.max_message_bytes);
  // Beyond this limit gRPC 1.51 closes the connection with all its streams. So it is more than
  // proxies, which put many clients on one connection, pass on: HAProxy 16 KiB in 101 fields, Envoy
  // 60 KiB in 100. Each field counts 32 bytes more.
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 64 << 10);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams);
  const auto set_time = [builder](const char* name, absl::Duration duration) {
    builder->AddChannelArgument(name, Milliseconds(duration));
  };
  set_time(GRPC_ARG_KEEPALIVE_TIME_MS, options.keepalive_time);
  set_time(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, options.keepalive_timeout);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  set_time(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, options.keepalive_time);
  set_time(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, options.handshake_timeout);
  if (options.max_connection_idle != absl::InfiniteDuration()) {
    set_time(GRPC_ARG_MAX_CONNECTION_IDLE_MS, options.max_connection_idle);
  }
  if (options.max_connection_age != absl::InfiniteDuration()) {
    // The grace time stays gRPC's default, infinite: no reply is cut.
    set_time(GRPC_ARG_MAX_CONNECTION_AGE_MS, options.max_connection_age);
  }
  // gRPC parses each chunk to its end, even if the connection is closed meanwhile: 64 KiB hold the
  // headers of some 600 calls.
  builder->AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 64 << 10);
  // No decompression, so no request is larger than its bytes on the wire.
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  // Reflection is gRPC's own synchronous service; all our services use callbacks.
  builder->SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder->SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder->SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  builder->SetOption(std::make_unique<ReflectionOption>(options.reflection));
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Start(const ListenerOptions& options,
                                                          grpc::ServerBuilder* builder,
                                                          Connections* connections) {
  std::unique_ptr<Listener> listener(new Listener);
  if (!options.address.empty()) {
    RIVULET_ASSIGN_OR_RETURN(const HostPort address,
                             ParseHostPort(options.address, options.setting));
    RIVULET_ASSIGN_OR_RETURN(const auto credentials, Credentials(options.tls, connections));
    auto sockets = ListenOn(address, options.keepalive_timeout);
    if (!sockets.ok()) return CannotListen(options, sockets.status().message());
    RIVULET_ASSIGN_OR_RETURN(listener->acceptor_, Acceptor::Create(*std::move(sockets), connections,
                                                                   options.tls.given()));
    listener->connections_ = connections;
    connections->SetLimits({MaxConnections(options), options.max_connections_per_address});
    using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    listener->external_ =
        builder->experimental().AddExternalConnectionAcceptor(Type::FROM_FD, credentials);
    listener->external_self_ = builder->experimental().AddExternalConnectionAcceptor(
        Type::FROM_FD, grpc::InsecureServerCredentials());
  }
  listener->server_ = builder->BuildAndStart();
  if (listener->server_ == nullptr) return CannotListen(options, "gRPC did not start");
  if (listener->acceptor_ != nullptr) {
    listener->acceptor_->Start(HandTo(listener->external_.get()),
                               HandTo(listener->external_self_.get()));
  }
  return listener;
}

void Listener::Shutdown(absl::Time deadline) {
  if (acceptor_ != nullptr) {
    acceptor_->Stop();  // gRPC takes no sockets from now on
    // First, because gRPC 1.51 answers calls that arrive during Shutdown with CANCELLED, which no
    // client retries.
    connections_->EndAll();
    connections_->AwaitEnded(deadline);
  }
  server_->Shutdown(absl::ToChronoTime(deadline));
  server_->Wait();
}

}  // namespace rivulet
