// SPDX-License-Identifier: Apache-2.0
// CallContext: gRPC's context of a call, with what the server knows of the call beside it. It lives
// until gRPC is done with the call, after the reactor's OnDone.
#pragma once

#include <grpcpp/server_context.h>

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/grpc/calls/caller.h"
#include "server/grpc/calls/request_record.h"
#include "server/grpc/calls/served_models.h"

namespace rivulet {

class CallContext final : public grpc::CallbackServerContext {
 public:
  // As CallContexts.
  CallContext(bool with_id, const RequestSinks& sinks) : with_id_(with_id), record_(sinks) {}
  // That of a call of RpcService. Ends the process where the server's builder had no CallContexts.
  static CallContext& Of(grpc::CallbackServerContext* context);

  // The handler begins. Where calls have ids, the call has one from now on, which its trailing
  // metadata tell.
  void Begin(const MethodName& method);
  RequestRecord& record() { return record_; }

  // Who calls, found once for the call. RpcService sets it before it calls the handler; where the
  // handler is not called it stays empty.
  const Caller& caller() const { return caller_; }
  void SetCaller(Caller caller);

  // The model that exists under this name for the caller; the record then has it. Errors: those of
  // ServedModels::Find.
  absl::StatusOr<ModelHold> FindModel(const ServedModels& models, absl::string_view name);

  // To be called before a message is sent: with the first one, the initial metadata tell the id.
  // An error before the first message stays trailers-only, so that gRPC may retry the call.
  // Thread: one at a time.
  void BeforeMessage();

 private:
  const bool with_id_;
  RequestRecord record_;
  Caller caller_;
  bool told_ = false;
};

// Begins the record of any call of `method`: the id is the value of the metadata
// kRequestIdKey, or a new one where that is absent, repeated or no id (request_id.h).
void BeginRecord(grpc::CallbackServerContext* context, const MethodName& method,
                 RequestRecord* record);

// Makes the contexts of a server: for ServerBuilder::SetContextAllocator. Thread: any.
class CallContexts final : public grpc::ContextAllocator {
 public:
  // `next`, which may be null, is told of each call too, and returns null. `with_ids`: calls have
  // ids, which a server that only its own process reaches does without. What
  // `sinks` names outlives the gRPC server: it is told of a call once gRPC is done with it.
  CallContexts(std::unique_ptr<grpc::ContextAllocator> next, bool with_ids,
               const RequestSinks& sinks);
  ~CallContexts() override;

  grpc::CallbackServerContext* NewCallbackServerContext() override;
  grpc::GenericCallbackServerContext* NewGenericCallbackServerContext() override;
  void Release(grpc::CallbackServerContext* context) override;
  void Release(grpc::GenericCallbackServerContext* context) override;

 private:
  const std::unique_ptr<grpc::ContextAllocator> next_;
  const bool with_ids_;
  const RequestSinks sinks_;
};

}  // namespace rivulet
