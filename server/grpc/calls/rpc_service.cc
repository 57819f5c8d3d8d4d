// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/calls/rpc_service.h"

#include <cstdio>
#include <cstdlib>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

using google::protobuf::MethodDescriptor;

[[noreturn]] void WrongHandlers(const google::protobuf::ServiceDescriptor& service) {
  std::fprintf(stderr, "RpcService: the handlers of %s do not match its methods\n",
               std::string(service.full_name()).c_str());
  std::abort();
}

grpc::internal::RpcMethod::RpcType TypeOf(const MethodDescriptor& method) {
  using grpc::internal::RpcMethod;
  if (method.client_streaming()) {
    return method.server_streaming() ? RpcMethod::BIDI_STREAMING : RpcMethod::CLIENT_STREAMING;
  }
  return method.server_streaming() ? RpcMethod::SERVER_STREAMING : RpcMethod::NORMAL_RPC;
}

}  // namespace

RpcService::RpcService(const char* full_name, const Callers* callers, Role role,
                       ErrorCounts* errors)
    : descriptor_(google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(full_name)),
      callers_(callers),
      role_(role),
      errors_(errors) {}

absl::Status RpcService::Check(CallContext* call, const absl::Status& message) const {
  RIVULET_ASSIGN_OR_RETURN(Caller caller, callers_->CallerOf(call->client_metadata(), role_));
  call->SetCaller(std::move(caller));
  RIVULET_RETURN_IF_ERROR(call->caller().TakeRequest());
  return message;
}

const char* RpcService::NameOf(const google::protobuf::Descriptor* request) {
  for (int i = 0; i < descriptor_->method_count(); ++i) {
    const MethodDescriptor& method = *descriptor_->method(i);
    if (method.input_type() == request) return names_.emplace_back(method.name()).c_str();
  }
  WrongHandlers(*descriptor_);
}

int RpcService::AddMethodOf(const google::protobuf::Descriptor* request,
                            const google::protobuf::Descriptor* reply, Type type) {
  for (int i = 0; i < descriptor_->method_count(); ++i) {
    const MethodDescriptor& method = *descriptor_->method(i);
    if (method.input_type() != request || method.output_type() != reply) continue;
    if (TypeOf(method) != type) break;
    const std::string& path =
        paths_.emplace_back(absl::StrCat("/", descriptor_->full_name(), "/", method.name()));
    AddMethod(new grpc::internal::RpcServiceMethod(path.c_str(), type, nullptr));
    return static_cast<int>(paths_.size()) - 1;
  }
  WrongHandlers(*descriptor_);
}

void RpcService::RequireAll() const {
  const std::set<std::string> distinct(paths_.begin(), paths_.end());
  if (distinct.size() != paths_.size() ||
      static_cast<int>(paths_.size()) != descriptor_->method_count())
    WrongHandlers(*descriptor_);
}

}  // namespace rivulet
