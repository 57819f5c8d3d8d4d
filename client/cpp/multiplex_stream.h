// SPDX-License-Identifier: Apache-2.0
// One stream of a Multiplex, from its start to its end.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/cpp/client_error.h"
#include "client/cpp/connection.h"
#include "rivulet/multiplex.h"

namespace rivulet {

// Writes messages in order, and passes replies to its owner. Lives at least until the stream ends.
// It calls no method of its owner within a call of its owner. Thread: any.
class Multiplex::Stream final
    : public grpc::ClientBidiReactor<v1::MultiplexRequest, v1::MultiplexReply> {
 public:
  // Threads of gRPC make these calls, one at a time. OnEnd is the last, after the channel was
  // released.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void OnReply(v1::MultiplexReply* reply) = 0;
    virtual void OnEnd(Stream* stream, absl::Status status) = 0;
  };

  static std::shared_ptr<Stream> Start(const Client::Connection& connection,
                                       const CallOptions& options, Owner* owner) {
    auto stream = std::make_shared<Stream>(connection, options, owner);
    stream->self_ = stream;
    absl::MutexLock lock(&stream->mutex_);
    connection.multiplex->async()->Multiplex(stream->call_->context(), stream.get());
    stream->AddHold();  // Write may be called at any time until the stream ends
    stream->StartRead(&stream->reply_);
    stream->StartCall();
    return stream;
  }

  Stream(const Client::Connection& connection, const CallOptions& options, Owner* owner)
      : owner_(owner), call_(std::in_place, connection, options) {}

  // Drops the message if the stream is ending; OnEnd will say why.
  void Write(v1::MultiplexRequest message) {
    absl::MutexLock lock(&mutex_);
    if (writes_ended_) return;
    unsent_.push_back(std::move(message));
    WriteNext();
  }

  // Ends the stream after the messages that Write was given.
  void Close() {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    WriteNext();
  }

  void Cancel() {
    absl::MutexLock lock(&mutex_);
    if (call_) call_->context()->TryCancel();
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      owner_->OnReply(&reply_);
      StartRead(&reply_);
      return;
    }
    absl::MutexLock lock(&mutex_);
    reads_ended_ = true;
    if (!writing_) StopWriting();  // else OnWriteDone does
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok || reads_ended_) {
      StopWriting();
    } else {
      WriteNext();
    }
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<Stream> self = std::move(self_);
    {
      absl::MutexLock lock(&mutex_);
      call_.reset();  // it shares the channel: see Client::ScoreAsync
    }
    owner_->OnEnd(this, FromGrpcStatus(status));
  }

  int requests = 0;  // number of the owner's requests on this stream; set by the owner

 private:
  // One message is being written at a time. gRPC runs no callback within these calls.
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || writes_ended_) return;
    if (!unsent_.empty()) {
      writing_ = true;
      request_ = std::move(unsent_.front());
      unsent_.pop_front();
      StartWrite(&request_);
    } else if (closing_) {
      StartWritesDone();
      StopWriting();
    }
  }

  void StopWriting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    unsent_.clear();
    if (!std::exchange(writes_ended_, true)) RemoveHold();
  }

  Owner* const owner_;
  std::shared_ptr<Stream> self_;  // until the end
  v1::MultiplexReply reply_;      // the reading thread's
  v1::MultiplexRequest request_;  // gRPC's while writing_

  absl::Mutex mutex_;
  std::optional<Client::Call> call_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::MultiplexRequest> unsent_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool reads_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool writes_ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace rivulet
