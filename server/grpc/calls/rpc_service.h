// SPDX-License-Identifier: Apache-2.0
// RpcService: the base of every service of rivulet.v1, in place of the generated base classes,
// which let gRPC answer messages that do not parse (received.h). No handler is called for a caller
// whose key does not allow it, and no exception leaves one (guarded.h).
#pragma once

#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/method_handler.h>
#include <grpcpp/support/server_callback.h>
// The folder of this header depends on the version of gRPC.
#if __has_include(<grpcpp/impl/server_callback_handlers.h>)
#include <grpcpp/impl/server_callback_handlers.h>
#else
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#endif

#include <deque>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "google/protobuf/descriptor.h"
#include "server/grpc/calls/call_context.h"
#include "server/grpc/calls/caller.h"
#include "server/grpc/calls/guarded.h"
#include "server/grpc/wire/received.h"
#include "server/process/call_note.h"

namespace rivulet {

// Thread: one, until the gRPC server that it is registered with starts.
class RpcService : public grpc::Service {
 protected:
  // `full_name`: of the service, as in the generated code. A handler is called only for callers who
  // may call methods of `role`; `errors` counts the other calls, as in status_map.h. Both outlive
  // the gRPC server.
  RpcService(const char* full_name, const Callers* callers, Role role, ErrorCounts* errors);

  // Every method of the service has its handler in `self`: a member function that takes and returns
  // what the generated callback service would, except for Received messages where the client
  // streams. Its messages tell which method it handles. REQUIRES (else the process ends): each
  // method has one handler, of its kind.
  template <typename Self, typename... Handlers>
  void Handle(Self* self, Handlers... handlers) {
    (Add(self, handlers), ...);
    RequireAll();
  }

 private:
  using Context = grpc::CallbackServerContext;
  using Type = grpc::internal::RpcMethod::RpcType;

  // The reactor of a call that ends with an error without its handler being called.
  template <typename Reactor>
  class Refused final : public Reactor {
   public:
    Refused(CallContext* call, const absl::Status& error, ErrorCounts* errors) {
      this->Finish(call->record().End(error, errors));
    }
    void OnDone() override { delete this; }
  };

  template <typename Self, typename Request, typename Reply>
  void Add(Self* self,
           grpc::ServerUnaryReactor* (Self::*handler)(Context*, const Request*, Reply*)) {
    using Unary = grpc::internal::CallbackUnaryHandler<Received<Request>, Reply>;
    AddCallback<Request, Reply>(
        Type::NORMAL_RPC,
        std::make_unique<Unary>([this, self, handler, name = NameOf<Request>()](
                                    Context* context, const Received<Request>* request,
                                    Reply* reply) -> grpc::ServerUnaryReactor* {
          return Run<grpc::ServerUnaryReactor>(context, name, request->error, [&](auto* call) {
            call->record().SetSession(SessionIn(request->message));
            return (self->*handler)(context, &request->message, reply);
          });
        }));
  }
  template <typename Self, typename Request, typename Reply>
  void Add(Self* self,
           grpc::ServerWriteReactor<Reply>* (Self::*handler)(Context*, const Request*)) {
    using Streaming = grpc::internal::CallbackServerStreamingHandler<Received<Request>, Reply>;
    using Reactor = grpc::ServerWriteReactor<Reply>;
    AddCallback<Request, Reply>(
        Type::SERVER_STREAMING,
        std::make_unique<Streaming>(
            [this, self, handler, name = NameOf<Request>()](
                Context* context, const Received<Request>* request) -> Reactor* {
              return Run<Reactor>(context, name, request->error, [&](auto* call) {
                call->record().SetSession(SessionIn(request->message));
                return (self->*handler)(context, &request->message);
              });
            }));
  }
  template <typename Self, typename Request, typename Reply>
  void Add(Self* self,
           grpc::ServerReadReactor<Received<Request>>* (Self::*handler)(Context*, Reply*)) {
    using Streaming = grpc::internal::CallbackClientStreamingHandler<Received<Request>, Reply>;
    using Reactor = grpc::ServerReadReactor<Received<Request>>;
    AddCallback<Request, Reply>(
        Type::CLIENT_STREAMING,
        std::make_unique<Streaming>([this, self, handler, name = NameOf<Request>()](
                                        Context* context, Reply* reply) -> Reactor* {
          return Run<Reactor>(context, name, absl::OkStatus(),
                              [&](auto*) { return (self->*handler)(context, reply); });
        }));
  }
  template <typename Self, typename Request, typename Reply>
  void Add(Self* self,
           grpc::ServerBidiReactor<Received<Request>, Reply>* (Self::*handler)(Context*)) {
    using Streaming = grpc::internal::CallbackBidiHandler<Received<Request>, Reply>;
    using Reactor = grpc::ServerBidiReactor<Received<Request>, Reply>;
    AddCallback<Request, Reply>(
        Type::BIDI_STREAMING,
        std::make_unique<Streaming>(
            [this, self, handler, name = NameOf<Request>()](Context* context) -> Reactor* {
              return Run<Reactor>(context, name, absl::OkStatus(),
                                  [&](auto*) { return (self->*handler)(context); });
            }));
  }

  // The reactor of `handler` for this CallContext, or one that ends the call: because the caller
  // may not make it, because of `message`, or because of the handler's exception.
  template <typename Reactor, typename Handler>
  Reactor* Run(Context* context, const char* method, const absl::Status& message,
               const Handler& handler) const {
    const CallNote note(method);
    CallContext* const call = &CallContext::Of(context);
    call->Begin({descriptor_->full_name().c_str(), method});
    Reactor* reactor = nullptr;
    const absl::Status error = Guarded([&]() -> absl::Status {
      absl::Status checked = Check(call, message);
      if (checked.ok()) reactor = handler(call);
      return checked;
    });
    return error.ok() ? reactor : new Refused<Reactor>(call, error, errors_);
  }
  template <typename Request, typename Reply>
  void AddCallback(Type type, std::unique_ptr<grpc::internal::MethodHandler> handler) {
    const int index = AddMethodOf(Request::descriptor(), Reply::descriptor(), type);
    MarkMethodCallback(index, handler.release());
  }
  // Finds the caller of the call and counts the call for its key. An error if the handler must not
  // be called: the caller may not call it now, or else `message`, the error of its message.
  absl::Status Check(CallContext* call, const absl::Status& message) const;
  // The name of the method with this message, for CallNote.
  template <typename Request>
  const char* NameOf() {
    return NameOf(Request::descriptor());
  }
  const char* NameOf(const google::protobuf::Descriptor* request);
  // Returns the index of the method.
  int AddMethodOf(const google::protobuf::Descriptor* request,
                  const google::protobuf::Descriptor* reply, Type type);
  void RequireAll() const;

  const google::protobuf::ServiceDescriptor* const descriptor_;
  const Callers* const callers_;
  const Role role_;
  ErrorCounts* const errors_;
  std::deque<std::string> paths_;  // of the added methods; gRPC keeps pointers to them
  std::deque<std::string> names_;  // CallNote keeps pointers to them
};

}  // namespace rivulet
