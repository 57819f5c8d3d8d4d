// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/calls/reflection_guard.h"

#include <grpc/grpc.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/base/error.h"
#include "server/grpc/wire/status_map.h"
#include "server/process/call_note.h"

namespace rivulet {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerRpcInfo;

// Guards one call.
class Guard final : public grpc::experimental::Interceptor {
 public:
  Guard(const Callers* callers, ErrorCounts* errors, ServerRpcInfo* call)
      : callers_(callers), errors_(errors), call_(call) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      const absl::Status status =
          callers_->Check(*methods->GetRecvInitialMetadata(), Role::kClient);
      if (!status.ok()) Refuse(status);
    }
    methods->Proceed();
  }

 private:
  // The handler still runs, but reads nothing from the client, and its replies are not sent.
  void Refuse(const absl::Status& status) {
    const CallNote note("reflection");
    const grpc::Status wire = ToGrpc(status, errors_);  // logs and counts it
    const std::string message = absl::StrCat(GetErrorDetail(status).reason, ": ", status.message());
    grpc_call_cancel_with_status(call_->server_context()->c_call(),
                                 static_cast<grpc_status_code>(wire.error_code()), message.c_str(),
                                 nullptr);
  }

  const Callers* const callers_;
  ErrorCounts* const errors_;
  ServerRpcInfo* const call_;
};

class GuardFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  GuardFactory(const Callers* callers, ErrorCounts* errors) : callers_(callers), errors_(errors) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(ServerRpcInfo* call) override {
    const absl::string_view method = call->method();
    const bool guarded =
        absl::StartsWith(method, "/grpc.") && !absl::StartsWith(method, "/grpc.health.v1.Health/");
    return guarded ? new Guard(callers_, errors_, call) : nullptr;
  }

 private:
  const Callers* const callers_;
  ErrorCounts* const errors_;
};

}  // namespace

void GuardReflection(const Callers* callers, ErrorCounts* errors, grpc::ServerBuilder* builder) {
  if (!callers->need_keys()) return;
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> creators;
  creators.push_back(std::make_unique<GuardFactory>(callers, errors));
  builder->experimental().SetInterceptorCreators(std::move(creators));
}

}  // namespace rivulet
