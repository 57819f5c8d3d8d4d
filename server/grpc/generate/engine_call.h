// SPDX-License-Identifier: Apache-2.0
// EngineCall: a unary call that an engine answers. It submits, ends when the engine reports, and
// cancels when the client does.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/engine.h"
#include "server/grpc/calls/call_context.h"
#include "server/grpc/calls/call_model.h"
#include "server/grpc/calls/server_calls.h"
#include "server/grpc/wire/session_in.h"
#include "server/grpc/wire/wire_field.h"
#include "server/process/call_note.h"

namespace rivulet {

// Answers at once.
inline grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                        const absl::Status& status, ServerCalls* calls) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  CallContext& call = CallContext::Of(context);
  if (status.ok()) call.BeforeMessage();
  reactor->Finish(call.record().End(status, &calls->errors));
  return reactor;
}

// Owns itself: gRPC calls OnDone after every other reaction, after the handler's return and after
// Finish, and Finish is called by the engine's last word (or by the error of `submit`), so nobody
// holds it after OnDone.
template <typename Request, typename Reply>
class EngineCall final : public grpc::ServerUnaryReactor {
 public:
  // `context`, `request` and `reply` are gRPC's and live as long as the call; `calls` outlives the
  // gRPC server. The handler, which has a CallNote, holds the model too until it returns: the
  // engine's last word may come before.
  EngineCall(ModelHold model, grpc::CallbackServerContext* context, const Request* request,
             Reply* reply, ServerCalls* calls)
      : model_(std::move(model)),
        call_(&CallContext::Of(context)),
        request_(request),
        reply_(reply),
        calls_(calls),
        method_(CallNote::Current()) {
    calls_->active.Enter();
  }

  // Calls submit(done), which hands `done` to the engine or returns an error; call it in the
  // handler. `done` takes an absl::StatusOr of any result, or an absl::Status; a result goes into
  // the reply by fill(result, reply).
  template <typename Submit, typename Fill>
  void Run(const Submit& submit, Fill fill) {
    const absl::StatusOr<RequestId> id = submit([this, fill = std::move(fill)](auto result) {
      if constexpr (std::is_same_v<decltype(result), absl::Status>) {
        End(result);
      } else {
        if (result.ok()) FillIn(fill, *result);
        End(result.status());
      }
    });
    if (id.ok()) {
      id_ = *id;  // gRPC orders the handler's end before OnCancel
    } else {
      End(id.status());
    }
  }

  void OnCancel() override { model_.Cancel(id_); }

  void OnDone() override {
    calls_->active.Leave();
    delete this;
  }

 private:
  template <typename FillReply, typename Result>
  void FillIn(const FillReply& fill, const Result& result) {
    fill(result, reply_);
    call_->record().SetSession(SessionIn(*reply_));  // that of an OpenSession is new
    if constexpr (std::is_same_v<Result, ScoreResult>) call_->record().SetScored(result.usage);
  }
  void End(const absl::Status& status) {
    const CallNote note(method_);
    model_.Release();
    if (status.ok()) call_->BeforeMessage();
    Finish(call_->record().End(NameWireField(status, *request_), &calls_->errors));
  }

  CallModel model_;
  CallContext* const call_;
  const Request* const request_;
  Reply* const reply_;
  ServerCalls* const calls_;
  const char* const method_;
  RequestId id_ = 0;
};

}  // namespace rivulet
