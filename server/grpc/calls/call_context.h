// SPDX-License-Identifier: Apache-2.0
// CallContext: gRPC's context of a call, and what the server knows about the call. It lives until
// gRPC is done with the call, after the reactor's OnDone.
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
  ~CallContext() override;
  // The context of a call of RpcService. Ends the process if the server's builder had no
  // CallContexts.
  static CallContext& Of(grpc::CallbackServerContext* context);

  // The handler begins. Where calls have ids, the call gets one, which its trailing metadata
  // contain.
  void Begin(const MethodName& method);
  RequestRecord& record() { return record_; }
  // Counts the call in `calls` until gRPC is done with it. Call it at most once, in the handler.
  void CountIn(ActiveCalls* calls);

  // The caller, found once per call. RpcService sets it before it calls the handler; if it does not
  // call the handler, this stays empty.
  const Caller& caller() const { return caller_; }
  void SetCaller(Caller caller);

  // The model that the caller knows by this name; notes it in the record. Errors: as
  // ServedModels::Find.
  absl::StatusOr<ModelHold> FindModel(const ServedModels& models, absl::string_view name);

  // Call it before each message: it puts the id into the initial metadata, which leave with the
  // first message. An error before that stays trailers-only, so that gRPC may retry the call.
  // Thread: one at a time.
  void BeforeMessage();

 private:
  const bool with_id_;
  RequestRecord record_;
  Caller caller_;
  bool id_sent_ = false;
  ActiveCalls* counted_in_ = nullptr;
};

// Begins the record of any call of `method`: the id is the value of the metadata
// kRequestIdKey, or a new one where that is absent, repeated or no id (request_id.h).
void BeginRecord(grpc::CallbackServerContext* context, const MethodName& method,
                 RequestRecord* record);

// The reason of the error for a client that does not read its reply for too long. It ends the call:
// the client sees this error, without details, in place of the unread rest.
inline constexpr char kReaderTooSlow[] = "READER_TOO_SLOW";
void CancelUnread(grpc_call* call);

// Makes the contexts of a server: for ServerBuilder::SetContextAllocator. Thread: any.
class CallContexts final : public grpc::ContextAllocator {
 public:
  // `next`, which may be null, is called for each call, too, and returns null. `with_ids`: calls
  // have ids; a server that only its own process reaches needs none. The sinks outlive the gRPC
  // server; they get the record of a call once gRPC is done with the call.
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
