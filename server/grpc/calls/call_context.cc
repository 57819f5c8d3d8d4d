// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/calls/call_context.h"

#include <grpcpp/generic/async_generic_service.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "server/request_log/request_id.h"

namespace rivulet {
namespace {

// The value of a metadata key that the client gave once; "" otherwise.
absl::string_view OnlyValue(const grpc::CallbackServerContext& context, const char* key) {
  const auto [begin, end] = context.client_metadata().equal_range(key);
  if (begin == end || std::next(begin) != end) return "";
  return absl::string_view(begin->second.data(), begin->second.size());
}

}  // namespace

CallContext& CallContext::Of(grpc::CallbackServerContext* context) {
  auto* const call = dynamic_cast<CallContext*>(context);
  if (call != nullptr) return *call;
  std::fputs("CallContext: the server was built without CallContexts\n", stderr);
  std::abort();
}

void BeginRecord(grpc::CallbackServerContext* context, RequestRecord* record) {
  const absl::string_view given = OnlyValue(*context, kRequestIdKey);
  record->Begin(IsRequestId(given) ? std::string(given) : NewRequestId());
  context->AddTrailingMetadata(kRequestIdKey, record->id());
}

void CallContext::Begin() {
  if (with_id_) BeginRecord(this, &record_);
}

void CallContext::BeforeMessage() {
  if (with_id_ && !std::exchange(told_, true)) AddInitialMetadata(kRequestIdKey, record_.id());
}

CallContexts::CallContexts(std::unique_ptr<grpc::ContextAllocator> next, bool with_ids)
    : next_(std::move(next)), with_ids_(with_ids) {}

CallContexts::~CallContexts() = default;

grpc::CallbackServerContext* CallContexts::NewCallbackServerContext() {
  if (next_ != nullptr) next_->NewCallbackServerContext();
  return new CallContext(with_ids_);
}

grpc::GenericCallbackServerContext* CallContexts::NewGenericCallbackServerContext() {
  return next_ == nullptr ? nullptr : next_->NewGenericCallbackServerContext();
}

void CallContexts::Release(grpc::CallbackServerContext* context) {
  if (next_ != nullptr) next_->Release(context);
  delete dynamic_cast<CallContext*>(context);  // gRPC releases its own generic contexts here, too
}

void CallContexts::Release(grpc::GenericCallbackServerContext* context) {
  if (next_ != nullptr) next_->Release(context);
}

}  // namespace rivulet
