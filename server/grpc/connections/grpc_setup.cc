// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/connections/grpc_setup.h"

#include <google/protobuf/stubs/common.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/version_info.h>

#include <string>
#include <utility>

#include "absl/base/call_once.h"
#include "grpc/health/v1/health.pb.h"
#include "server/log.h"

// Protocol Buffers 22 (C++ 4.22) and gRPC 1.65 log through Abseil.
#if GOOGLE_PROTOBUF_VERSION < 4022000
#include <google/protobuf/stubs/logging.h>
#endif
#if GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR < 65
#include <grpc/support/log.h>
#else
#include "absl/log/globals.h"
#include "absl/log/initialize.h"
#include "absl/log/log_entry.h"
#include "absl/log/log_sink.h"
#include "absl/log/log_sink_registry.h"
#endif

namespace rivulet {
namespace {

void LogLine(bool error, std::string message) {
  LogLimited(error ? LogLevel::kWarning : LogLevel::kInfo, "grpc",
             {{"message", std::move(message)}});
}

#if GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR < 65
void TakeGrpcLog() {
  gpr_set_log_function([](gpr_log_func_args* args) {
    LogLine(args->severity == GPR_LOG_SEVERITY_ERROR, args->message);
  });
}
#else
class Sink final : public absl::LogSink {
  void Send(const absl::LogEntry& entry) override {
    LogLine(entry.log_severity() >= absl::LogSeverity::kError, std::string(entry.text_message()));
  }
};

void TakeGrpcLog() {
  absl::SetStderrThreshold(absl::LogSeverityAtLeast::kInfinity);
  absl::InitializeLog();       // until then all lines go to stderr
  absl::AddLogSink(new Sink);  // for as long as the process lives
}
#endif

}  // namespace

void SetUpGrpc() {
  static absl::once_flag once;
  absl::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    // gRPC's health service has no descriptors; this makes the linker keep ours, for reflection.
    grpc::health::v1::HealthCheckRequest::descriptor();
#if GOOGLE_PROTOBUF_VERSION < 4022000
    google::protobuf::SetLogHandler(nullptr);
#endif
    TakeGrpcLog();
  });
}

}  // namespace rivulet
