// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/calls/call_context.h"

#include <grpc/grpc.h>
#include <grpcpp/generic/async_generic_service.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "server/request_log/request_id.h"
#include "server/tracing/trace_context.h"

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

CallContext::~CallContext() {
  if (counted_in_ != nullptr) counted_in_->Leave();
}

void CallContext::CountIn(ActiveCalls* calls) {
  counted_in_ = calls;
  calls->Enter();
}

void CancelUnread(grpc_call* call) {
  grpc_call_cancel_with_status(call, GRPC_STATUS_RESOURCE_EXHAUSTED,
                               "READER_TOO_SLOW: nothing of the reply was read for too long.",
                               nullptr);
}

void BeginRecord(grpc::CallbackServerContext* context, const MethodName& method,
                 RequestRecord* record) {
  RequestRecord::Start start;
  const absl::string_view given = OnlyValue(*context, kRequestIdKey);
  start.id = IsRequestId(given) ? std::string(given) : NewRequestId();
  if (record->sinks().any()) {
    start.method = method;
    start.caller = ParseTraceParent(OnlyValue(*context, kTraceParentKey));
    // As in events of the log: gRPC escapes the brackets of IPv6.
    start.peer = absl::StrReplaceAll(context->peer(), {{"%5B", "["}, {"%5D", "]"}});
  }
  record->Begin(std::move(start));
  context->AddTrailingMetadata(kRequestIdKey, record->id());
}

void CallContext::Begin(const MethodName& method) {
  if (with_id_) BeginRecord(this, method, &record_);
}

void CallContext::SetCaller(Caller caller) {
  caller_ = std::move(caller);
  record_.SetCaller(caller_);
}

absl::StatusOr<ModelHold> CallContext::FindModel(const ServedModels& models,
                                                 absl::string_view name) {
  absl::StatusOr<ModelHold> model = models.Find(name, caller_.models());
  if (model.ok()) record_.SetModel(model->name());
  return model;
}

void CallContext::BeforeMessage() {
  if (with_id_ && !std::exchange(id_sent_, true)) AddInitialMetadata(kRequestIdKey, record_.id());
}

CallContexts::CallContexts(std::unique_ptr<grpc::ContextAllocator> next, bool with_ids,
                           const RequestSinks& sinks)
    : next_(std::move(next)), with_ids_(with_ids), sinks_(sinks) {}

CallContexts::~CallContexts() = default;

grpc::CallbackServerContext* CallContexts::NewCallbackServerContext() {
  if (next_ != nullptr) next_->NewCallbackServerContext();
  return new CallContext(with_ids_, sinks_);
}

grpc::GenericCallbackServerContext* CallContexts::NewGenericCallbackServerContext() {
  return next_ == nullptr ? nullptr : next_->NewGenericCallbackServerContext();
}

void CallContexts::Release(grpc::CallbackServerContext* context) {
  if (next_ != nullptr) next_->Release(context);
  // gRPC releases its own generic contexts here, too.
  auto* const call = dynamic_cast<CallContext*>(context);
  if (call != nullptr) call->record().Write();
  delete call;
}

void CallContexts::Release(grpc::GenericCallbackServerContext* context) {
  if (next_ != nullptr) next_->Release(context);
}

}  // namespace rivulet
