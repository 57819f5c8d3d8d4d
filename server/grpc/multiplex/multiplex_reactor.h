// SPDX-License-Identifier: Apache-2.0
// MultiplexReactor: one Multiplex stream. What all its requests got while a message was on its way,
// or in one run of an engine, leaves in one message; errors of single requests are parts of it.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "rivulet/v1/multiplex.pb.h"
#include "server/grpc/calls/call_context.h"
#include "server/grpc/calls/caller.h"
#include "server/grpc/calls/served_models.h"
#include "server/grpc/calls/server_calls.h"
#include "server/grpc/calls/text_pool.h"
#include "server/grpc/multiplex/multiplex_member.h"
#include "server/grpc/wire/received.h"

namespace rivulet {

// NOLINTNEXTLINE(cppcoreguidelines-virtual-class-destructor): it deletes itself, nobody else may
class MultiplexReactor;

// The streams of a server, so that a drain can end those that are open without a request. Thread:
// any.
class MultiplexStreams {
 public:
  // False: the server drains.
  bool Add(MultiplexReactor* stream);
  void Remove(MultiplexReactor* stream);
  // Every stream ends once its requests have; later ones end at once.
  void Drain();

 private:
  absl::Mutex mutex_;
  absl::flat_hash_set<MultiplexReactor*> streams_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

// Owns itself: deleted once gRPC is done with the stream, which it ends only when its requests have
// ended, and nobody is about to call Pump. Thread: OnMemberReady on emitter threads, On* on threads
// of gRPC.
// NOLINTNEXTLINE(cppcoreguidelines-virtual-class-destructor): the same
class MultiplexReactor final
    : public grpc::ServerBidiReactor<Received<v1::MultiplexRequest>, v1::MultiplexReply>,
      public MultiplexOwner {
 public:
  // A message is closed once its parts have more bytes, so that a slow reader gets many.
  static constexpr size_t kMessageBytes = size_t{64} << 10;
  // While so many errors of requests that never began wait to be sent, no request is read.
  static constexpr size_t kMaxNotes = 256;

  // All is borrowed: `context` for the call, the others outlive the gRPC server. `max_open`: of
  // requests at a time.
  MultiplexReactor(grpc::CallbackServerContext* context, const ServedModels* models, int max_open,
                   MultiplexStreams* streams, ServerCalls* calls);

  // Ends the stream once its requests have ended. The caller has a hold.
  void Drain();
  void Hold() { ++holders_; }
  void Release();

  void OnMemberReady(MultiplexMember* member) override;
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  // A part that no engine has a word in.
  struct Note {
    uint64_t key;
    absl::Status status;
    std::shared_ptr<MultiplexMember> ended;  // the request that it ends; null: a message is refused
  };
  enum class Action { kNone, kWrite, kWriteAndFinish, kFinish };

  ~MultiplexReactor() override = default;

  // True: request_ has been handled. False: its text is converted first, and then AfterRead called.
  bool Handle();
  bool Begin();
  // Opens the request of request_, where the stream may have another; else null, and why is noted.
  std::shared_ptr<MultiplexMember> Open();
  void CancelRequest(uint64_t key);
  // Has the text of request_ converted, and then the request handed to its engine.
  absl::Status Submit(const std::shared_ptr<MultiplexMember>& member);
  void AfterText(const TextTurn& turn, const Caller& caller, const ModelHold& model,
                 const std::shared_ptr<MultiplexMember>& member);
  void EndUnsubmitted(absl::Status why, const std::shared_ptr<MultiplexMember>& member);
  void AfterRead(bool ok);
  void AddNote(Note note);
  // Nobody reads any more, or what comes is no message: ends all requests, then the stream with
  // `why`.
  void Break(absl::Status why);

  // Sends what there is to send, unless a message is on its way or a batch is being told: whoever
  // waits for these calls it again.
  void Pump();
  void Gather(bool broken, const std::vector<Note>& notes, std::vector<uint64_t>* ended);
  Action Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Over() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Perform(Action action, const absl::Status& end);
  // Reads on, if reading has paused and may go on; then true, and Pump is to be called.
  bool ReadOn();

  CallContext* const call_;
  const ServedModels* const models_;
  const size_t max_open_;
  MultiplexStreams* const streams_;
  ServerCalls* const calls_;
  // gRPC, a batch that is being told, a drain.
  std::atomic<int> holders_ = 1;

  absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<MultiplexMember>> open_ ABSL_GUARDED_BY(mutex_);
  std::vector<MultiplexMember*> ready_ ABSL_GUARDED_BY(mutex_);
  std::vector<Note> notes_ ABSL_GUARDED_BY(mutex_);
  int readers_ ABSL_GUARDED_BY(mutex_) = 0;  // threads that may still call StartRead
  bool read_paused_ ABSL_GUARDED_BY(mutex_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;    // the client sends no more
  bool batch_pending_ ABSL_GUARDED_BY(mutex_) = false;  // OnMemberReady of a batch goes on
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;        // the next four are somebody's
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;         // Break was called
  absl::Status why_broken_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;  // nothing more may be asked of gRPC

  // Of whoever has set writing_.
  std::deque<MultiplexMember*> taking_;
  v1::MultiplexReply message_;
  bool large_parts_ = false;  // message_ keeps memory that small parts do not need

  // gRPC's while it reads, else that of OnReadDone and of who converts its text: meanwhile nothing
  // is read, so requests begin in their order, and a stream holds one text that waits.
  Received<v1::MultiplexRequest> request_;
};

}  // namespace rivulet
