// SPDX-License-Identifier: Apache-2.0
// MultiplexReactor: one Multiplex stream. One message holds everything that its requests got in one
// run of an engine, or while the previous message was being sent; errors of single requests are
// parts of it.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "rivulet/v1/multiplex.pb.h"
#include "server/base/mutex.h"
#include "server/grpc/calls/call_context.h"
#include "server/grpc/calls/caller.h"
#include "server/grpc/calls/served_models.h"
#include "server/grpc/calls/server_calls.h"
#include "server/grpc/calls/text_pool.h"
#include "server/grpc/multiplex/multiplex_member.h"
#include "server/grpc/wire/received.h"
#include "server/grpc/wire/serialized.h"

namespace rivulet {

// NOLINTNEXTLINE(cppcoreguidelines-virtual-class-destructor): it deletes itself, nobody else may
class MultiplexReactor;

using MultiplexStream =
    grpc::ServerBidiReactor<Received<v1::MultiplexRequest>, Serialized<v1::MultiplexReply>>;

// The streams of a server, so that a drain can end the streams without an open request. Thread:
// any.
class MultiplexStreams {
 public:
  // Adds a stream. False: the server drains.
  bool Add(MultiplexReactor* stream);
  void Remove(MultiplexReactor* stream);
  // Ends every stream once its requests have ended, and later streams at once.
  void Drain();

 private:
  Mutex mutex_;
  absl::flat_hash_set<MultiplexReactor*> streams_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

// Owns itself: deleted once gRPC is done with the stream and no thread will call Pump any more. The
// stream ends only after all its requests. Thread: OnMemberReady on emitter threads, On* on threads
// of gRPC.
// NOLINTNEXTLINE(cppcoreguidelines-virtual-class-destructor): the same
class MultiplexReactor final : public MultiplexStream, public MultiplexOwner {
 public:
  // Once the parts of a message have more bytes, the next message begins, so that a slow reader
  // gets several messages.
  static constexpr size_t kMessageBytes = size_t{64} << 10;
  // No request is read while kMaxNotes errors of requests that never began wait to be sent.
  static constexpr size_t kMaxNotes = 256;

  // All pointers are borrowed: `context` for the call, the others outlive the gRPC server.
  // `max_open`: the most open requests at a time.
  MultiplexReactor(grpc::CallbackServerContext* context, const ServedModels* models, int max_open,
                   MultiplexStreams* streams, ServerCalls* calls);

  // Ends the stream once its requests have ended. The caller counts in holders_.
  void Drain();
  void Hold() { ++holders_; }
  void Release();

  void OnMemberReady(MultiplexMember* member) override;
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  // A part that does not come from an engine.
  struct Note {
    uint64_t key;
    absl::Status status;
    std::shared_ptr<MultiplexMember> ended;  // the request that it ends; null: a message is refused
  };
  enum class Action { kNone, kWrite, kWriteAndFinish, kFinish };

  ~MultiplexReactor() override = default;

  // True: request_ has been handled. False: its text is converted first; AfterRead is called later.
  bool Handle();
  bool Begin();
  // Opens the request in request_ if the stream may have another request; else adds an error and
  // returns null.
  std::shared_ptr<MultiplexMember> Open();
  void CancelRequest(uint64_t key);
  // Has the text of request_ converted; after that its engine gets the request.
  absl::Status Submit(const std::shared_ptr<MultiplexMember>& member);
  void AfterText(const TextTurn& turn, const Caller& caller, const ModelHold& model,
                 const std::shared_ptr<MultiplexMember>& member);
  void EndUnsubmitted(absl::Status why, const std::shared_ptr<MultiplexMember>& member);
  void AfterRead(bool ok);
  void AddNote(Note note);
  // The client has gone or has sent something that is no message, or memory is missing: ends all
  // requests, and then the stream with `why`.
  void Break(absl::Status why);

  // Sends what there is to send, unless a message is being sent or the listeners of a batch are
  // being called: Pump is called again after these.
  void Pump();
  void Gather(bool broken, const std::vector<Note>& notes, std::vector<uint64_t>* ended);
  Action Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Over() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Perform(Action action, const absl::Status& end);
  // Reads on if reading has paused and may go on. True: it reads on, and Pump is to be called.
  bool ReadOn();

  CallContext* const call_;
  const ServedModels* const models_;
  const size_t max_open_;
  MultiplexStreams* const streams_;
  ServerCalls* const calls_;
  // gRPC, a batch whose listeners are being called, a drain.
  std::atomic<int> holders_ = 1;

  Mutex mutex_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<MultiplexMember>> open_ ABSL_GUARDED_BY(mutex_);
  std::vector<MultiplexMember*> ready_ ABSL_GUARDED_BY(mutex_);
  std::vector<Note> notes_ ABSL_GUARDED_BY(mutex_);
  int readers_ ABSL_GUARDED_BY(mutex_) = 0;  // threads that may still call StartRead
  bool read_paused_ ABSL_GUARDED_BY(mutex_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;            // the client sends no more
  bool batch_pending_ ABSL_GUARDED_BY(mutex_) = false;          // a batch calls OnMemberReady
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;                // one thread has the members below
  std::optional<absl::Status> broken_ ABSL_GUARDED_BY(mutex_);  // why Break was called
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;  // nothing more may be asked of gRPC

  // Used only by the thread that has set writing_.
  struct Outgoing {
    std::deque<MultiplexMember*> members;  // whose parts are next
    v1::MultiplexReply message;
    bool large_parts = false;  // `message` has more memory than small parts need
    Serialized<v1::MultiplexReply> bytes;
  } outgoing_;

  // Used by gRPC while it reads, then by OnReadDone and the thread that converts the text. Nothing
  // is read meanwhile, so requests begin in order, and at most one text of a stream waits.
  Received<v1::MultiplexRequest> request_;
};

}  // namespace rivulet
