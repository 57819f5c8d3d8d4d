// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/listener.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/base/call_once.h"
#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "server/log.h"
#include "server/server_config.h"

namespace rivulet {
namespace {

// gRPC has one log function and one health default for the whole process.
void SetUpProcess() {
  static absl::once_flag once;
  absl::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    // libprotobuf would print a line of its own for text that is not UTF-8; gRPC answers it.
    google::protobuf::SetLogHandler(nullptr);
    gpr_set_log_function([](gpr_log_func_args* args) {
      const LogLevel level =
          args->severity == GPR_LOG_SEVERITY_ERROR ? LogLevel::kWarning : LogLevel::kInfo;
      Log(level, "grpc", {{"message", std::string(args->message)}});
    });
  });
}

// Linking the reflection library turns it on for every server of the process; this says so for one.
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

// gRPC does not say why it could not listen: tries once more by hand.
std::string WhyNotListening(const HostPort& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (error != 0) return gai_strerror(error);
  std::string why = "the address cannot be used";
  for (addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    const int fd = socket(entry->ai_family, entry->ai_socktype, entry->ai_protocol);
    if (fd < 0) continue;
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, entry->ai_addr, entry->ai_addrlen) != 0 || listen(fd, 1) != 0) {
      why = std::strerror(errno);
    }
    close(fd);
  }
  freeaddrinfo(found);
  return why;
}

}  // namespace

void SetUpListener(const ListenerOptions& options, grpc::ServerBuilder* builder) {
  SetUpProcess();
  builder->SetMaxReceiveMessageSize(options.max_message_bytes);
  // gRPC 1.51 closes the connection over more than this, with all its streams; so it is more than
  // proxies pass on, which put many clients on one connection: HAProxy 16 KiB in 101 fields, Envoy
  // 60 KiB in 100. A field counts 32 bytes more.
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 64 << 10);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams);
  // A second server on the same port must fail, not share it.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // A vanished client is noticed within 40 s. Clients may ping as often as that themselves.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 30000);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10000);
  // No decompression, so no request is larger than its bytes on the wire.
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  // Reflection is gRPC's own synchronous service; everything of ours uses callbacks.
  builder->SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder->SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder->SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  builder->SetOption(std::make_unique<ReflectionOption>(options.reflection));
}

absl::StatusOr<std::unique_ptr<grpc::Server>> StartListener(const ListenerOptions& options,
                                                            grpc::ServerBuilder* builder,
                                                            int* port) {
  HostPort address;
  if (!options.address.empty()) {
    RIVULET_ASSIGN_OR_RETURN(address, ParseHostPort(options.address, options.setting));
    builder->AddListeningPort(options.address, grpc::InsecureServerCredentials(), port);
  }
  std::unique_ptr<grpc::Server> server = builder->BuildAndStart();
  if (server != nullptr && (options.address.empty() || *port != 0)) return server;
  ErrorDetail detail;
  detail.reason = "ADDRESS_UNAVAILABLE";
  detail.field = options.setting;
  return MakeError(
      absl::StatusCode::kUnavailable,
      absl::StrCat("cannot listen on ", options.address, ": ", WhyNotListening(address)), detail);
}

}  // namespace rivulet
