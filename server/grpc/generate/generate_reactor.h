// SPDX-License-Identifier: Apache-2.0
// GenerateReactor: one Generate call. Sends the content of the reply to the client, one message at
// a time; tokens that arrive meanwhile wait in the reply and leave together (back-pressure: if
// nobody takes them, the engine pauses the rows of the reply).
//
// After the end of a reply its unsent rest waits for the client for EngineOptions::reader_timeout,
// from the last message that the client took. Then the call ends without the rest.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "rivulet/v1/inference.pb.h"
#include "server/base/mutex.h"
#include "server/engine/engine.h"
#include "server/engine/reply.h"
#include "server/grpc/calls/call_context.h"
#include "server/grpc/calls/call_text.h"
#include "server/grpc/calls/served_models.h"
#include "server/grpc/calls/server_calls.h"
#include "server/grpc/wire/serialized.h"

namespace rivulet {

// Owns itself: created by Start, deleted once gRPC is done with the call (OnDone) and the engine is
// done with the listener (its last OnReady has returned). Thread: OnReady on the engine's emitter
// thread, Begin on a thread of gRPC or TextPool, On* on threads of gRPC.
// NOLINTNEXTLINE(cppcoreguidelines-virtual-class-destructor): it deletes itself, nobody else may
class GenerateReactor final : public grpc::ServerWriteReactor<Serialized<v1::GenerateReply>>,
                              public ReplyListener {
 public:
  // Converts the text of `request` and submits the request to the engine of `model`. An error of
  // either step ends the call with trailers only, so that a client may retry. `request` is gRPC's
  // and lives as long as the call; `calls` must outlive the gRPC server.
  static GenerateReactor* Start(const absl::StatusOr<ModelHold>& model,
                                grpc::CallbackServerContext* context,
                                const v1::GenerateRequest& request, ServerCalls* calls);

  void OnReady() override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  // What to ask of gRPC after mutex_ is released, because gRPC may react at once, on any thread.
  enum class Action { kNone, kWrite, kWriteAndFinish, kFinish, kCancel };

  GenerateReactor(ModelHold model, grpc::CallbackServerContext* context,
                  const v1::GenerateRequest* request, ServerCalls* calls);
  ~GenerateReactor() override;

  // Called when the turn of the text has come.
  void Begin(const TextTurn& turn);
  absl::Status Submit(GenerateSpec spec);
  // Returns Next; after an exception the reply is cancelled, and the call ends with that error.
  Action Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Action Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Perform(Action action);
  // Makes alarm_ call CutUnread once unread messages have waited for patience_.
  void WatchReader() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CutUnread(bool expired);
  void Release();

  CallModel model_;  // released after the last OnReady
  CallText text_;
  CallContext* const context_;  // valid until OnDone
  grpc_call* const call_;       // a reference: valid after OnDone, when gRPC's context is not
  const v1::GenerateRequest* const request_;  // not read once gRPC is asked to finish
  ServerCalls* const calls_;
  // Holders of this object: gRPC, the text until it has been submitted, the engine from Submit to
  // the last OnReady, and alarm_ while it runs.
  std::atomic<int> holders_ = 1;

  Mutex mutex_;
  std::shared_ptr<Reply> reply_;  // set before any reaction can read it: by Submit, under mutex_
  std::vector<ReplyDelta> waiting_ ABSL_GUARDED_BY(mutex_);  // taken from the reply, latest first
  std::optional<Reply::End> end_ ABSL_GUARDED_BY(mutex_);
  uint64_t seed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool seed_sent_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;   // bytes_ belongs to gRPC
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;  // nothing more may be asked of gRPC
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;    // nobody reads any more
  absl::Status failed_;  // set under mutex_, before finished_: an exception has broken the reply
  bool done_ ABSL_GUARDED_BY(mutex_) = false;          // gRPC has called OnDone
  int64_t messages_read_ ABSL_GUARDED_BY(mutex_) = 0;  // or on their way to the client
  int64_t messages_when_watched_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration patience_ ABSL_GUARDED_BY(mutex_);  // the engine's reader_timeout
  grpc::Alarm alarm_ ABSL_GUARDED_BY(mutex_);
  v1::GenerateReply message_ ABSL_GUARDED_BY(mutex_);
  Serialized<v1::GenerateReply> bytes_;  // gRPC's while writing_ or finished_, else as message_
};

}  // namespace rivulet
