// SPDX-License-Identifier: Apache-2.0
// EngineCall: a unary call that an engine answers, or that only converts a text. It submits the
// request, ends when the engine reports, and cancels the request when the client cancels.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/engine.h"
#include "server/grpc/calls/call_context.h"
#include "server/grpc/calls/call_text.h"
#include "server/grpc/calls/caller.h"
#include "server/grpc/calls/guarded.h"
#include "server/grpc/calls/served_models.h"
#include "server/grpc/calls/server_calls.h"
#include "server/grpc/wire/received.h"
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
// Finish, which the engine's last notification (or the error of `submit`) causes. So after OnDone
// only a function of RunText that has not returned holds this object.
template <typename Request, typename Reply>
class EngineCall final : public grpc::ServerUnaryReactor {
 public:
  // `context`, `request` and `reply` are gRPC's and live as long as the call; `calls` outlives the
  // gRPC server. The handler, which has a CallNote, also holds the model until it returns, and so
  // does a function of RunText, because the engine's last notification may come before.
  EngineCall(ModelHold model, grpc::CallbackServerContext* context, const Request* request,
             Reply* reply, ServerCalls* calls)
      : model_(std::move(model)),
        call_(&CallContext::Of(context)),
        request_(request),
        reply_(reply),
        calls_(calls),
        method_(CallNote::Current()) {
    call_->CountIn(&calls_->active);
  }

  // Calls run(turn) when the turn of the request's text (of `bytes`) has come: now, or later on
  // another thread. `run` converts the text unless turn.Check is an error, and then calls Run or
  // End. Call this in the handler.
  template <typename RunTurn>
  void RunText(int64_t bytes, RunTurn run) {
    ++holders_;
    text_.Run(calls_, call_->caller(), DeadlineOf(*call_), bytes,
              [this, run = std::move(run)](const TextTurn& turn) {
                run(turn);
                Release();
              });
  }

  // Calls submit(done), which hands `done` to the engine or returns an error. Call Run in the
  // handler or in RunText. `done` takes an absl::StatusOr of any result, or an absl::Status;
  // fill(result, reply) puts a result into the reply.
  template <typename Submit, typename Fill>
  void Run(const Submit& submit, Fill fill) {
    const auto done = [this, fill = std::move(fill)](auto&& result) {
      if constexpr (std::is_same_v<std::decay_t<decltype(result)>, absl::Status>) {
        End(result);
      } else {
        End(result.ok() ? FillIn(fill, *result) : result.status());
      }
    };
    const absl::StatusOr<RequestId> id =
        Guarded([&]() -> absl::StatusOr<RequestId> { return submit(done); });
    if (id.ok()) {
      model_.SetId(*id);
    } else {
      End(id.status());
    }
  }

  // Ends the call with the content of the reply, or with an error.
  void End(const absl::Status& status) {
    const CallNote note(method_);
    model_.Release();
    if (status.ok()) call_->BeforeMessage();
    Finish(call_->record().End(NameWireField(status, *request_), &calls_->errors));
  }

  // As End, with a reply that may be long: its memory counts for the tenant until it is sent.
  void EndText(absl::Status status) {
    // gRPC holds the message and its serialized bytes.
    const auto bytes = static_cast<int64_t>(reply_->SpaceUsedLong() + reply_->ByteSizeLong());
    if (status.ok() && bytes > kShortReplyBytes) {
      status = calls_->text_replies.Take(call_->caller().tenant, bytes);
      if (status.ok()) text_reply_bytes_ = bytes;
    }
    if (!status.ok()) reply_->Clear();
    End(status);
  }

  void OnCancel() override {
    text_.Cancel();
    model_.Cancel();
  }

  void OnDone() override {
    if (text_reply_bytes_ > 0) {
      Reply().Swap(reply_);  // which frees it, unlike Clear
      calls_->text_replies.Give(call_->caller().tenant, text_reply_bytes_);
    }
    Release();
  }

 private:
  template <typename FillReply, typename Result>
  absl::Status FillIn(const FillReply& fill, const Result& result) {
    return Guarded([&] {
      fill(result, reply_);
      call_->record().SetSession(SessionIn(*reply_));  // OpenSession has a new id
      if constexpr (std::is_same_v<Result, ScoreResult>) call_->record().SetScored(result.usage);
      return absl::OkStatus();
    });
  }
  void Release() {
    if (holders_.fetch_sub(1) == 1) delete this;
  }

  // Thousands of such replies at once take little memory.
  static constexpr int64_t kShortReplyBytes = int64_t{16} << 10;

  CallModel model_;
  CallText text_;
  int64_t text_reply_bytes_ = 0;  // taken from text_replies
  CallContext* const call_;
  const Request* const request_;
  Reply* const reply_;
  ServerCalls* const calls_;
  const char* const method_;
  std::atomic<int> holders_ = 1;  // gRPC, and RunText
};

}  // namespace rivulet
