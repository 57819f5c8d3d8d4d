// SPDX-License-Identifier: Apache-2.0
#include "rivulet/multiplex.h"

#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "client/cpp/client_error.h"
#include "client/cpp/connection.h"

namespace rivulet {

// Threads of gRPC read and write; any other begins and cancels requests.
class Multiplex::Stream final
    : public grpc::ClientBidiReactor<v1::MultiplexRequest, v1::MultiplexReply> {
 public:
  Stream(const Client::Connection& connection, const CallOptions& options)
      : call_(connection, options) {
    connection.multiplex->async()->Multiplex(call_.context(), this);
    AddHold();  // of those who write when they like, until the stream ends
    StartRead(&reply_);
    StartCall();
  }

  ~Stream() override {
    call_.context()->TryCancel();
    Finish().IgnoreError();
  }

  uint64_t Generate(v1::GenerateRequest request, OnPart on_part, Done done,
                    absl::Duration timeout) {
    v1::MultiplexRequest message;
    *message.mutable_generate() = std::move(request);
    if (timeout != absl::InfiniteDuration()) {
      const int64_t seconds = absl::IDivDuration(timeout, absl::Seconds(1), &timeout);
      message.mutable_timeout()->set_seconds(seconds);
      message.mutable_timeout()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(timeout)));
    }
    absl::Status refused;
    uint64_t key = 0;
    {
      absl::MutexLock lock(&mutex_);
      key = ++last_key_;
      message.set_key(key);
      if (over_) {
        refused = end_.ok() ? absl::FailedPreconditionError("the stream has ended") : end_;
      } else if (closing_) {
        refused = absl::FailedPreconditionError("Finish was called");
      } else {
        open_[key] = std::make_shared<Open>(std::move(on_part), std::move(done));
        unsent_.push_back(std::move(message));
      }
    }
    if (refused.ok()) {
      WriteNext();
    } else {
      // NOLINTNEXTLINE(bugprone-use-after-move): moved only where nothing was refused
      done(refused);
    }
    return key;
  }

  void Cancel(uint64_t key) {
    {
      absl::MutexLock lock(&mutex_);
      if (!open_.contains(key)) return;
      AddCancel(key);
    }
    WriteNext();
  }

  absl::Status Finish() {
    {
      absl::MutexLock lock(&mutex_);
      closing_ = true;
    }
    WriteNext();
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&ended_));
    return end_;
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      bool release = false;
      {
        absl::MutexLock lock(&mutex_);
        reads_ended_ = true;
        if (!writing_) release = StopWriting();  // else OnWriteDone does
      }
      if (release) RemoveHold();
      return;
    }
    for (const v1::MultiplexPart& part : reply_.parts()) Tell(part);
    StartRead(&reply_);
  }

  void OnWriteDone(bool ok) override {
    bool release = false;
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      if (!ok || reads_ended_) release = StopWriting();
    }
    if (release) {
      RemoveHold();
    } else {
      WriteNext();
    }
  }

  void OnDone(const grpc::Status& grpc_status) override {
    const absl::Status status = FromGrpcStatus(grpc_status);
    absl::flat_hash_map<uint64_t, std::shared_ptr<Open>> open;
    {
      absl::MutexLock lock(&mutex_);
      end_ = status;
      over_ = true;
      open.swap(open_);
    }
    const absl::Status lost =
        status.ok() ? absl::UnavailableError("the stream ended before the request") : status;
    for (const auto& [key, request] : open) request->done(lost);
    absl::MutexLock lock(&mutex_);
    ended_ = true;  // the last: now the destructor may go on
  }

 private:
  struct Open {
    Open(OnPart p, Done d) : on_part(std::move(p)), done(std::move(d)) {}
    const OnPart on_part;
    const Done done;
    bool stopped = false;  // by on_part. Thread: the reading one
  };

  void AddCancel(uint64_t key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    v1::MultiplexRequest message;
    message.set_key(key);
    message.mutable_cancel();
    unsent_.push_back(std::move(message));
  }

  // One message is on its way at a time.
  void WriteNext() {
    bool close = false;
    {
      absl::MutexLock lock(&mutex_);
      if (writing_ || writes_ended_) return;
      if (unsent_.empty()) {
        if (!closing_ || !open_.empty()) return;  // what is open may still be cancelled
        writes_ended_ = close = true;
      } else {
        writing_ = true;
        request_ = std::move(unsent_.front());
        unsent_.pop_front();
      }
    }
    if (close) {
      StartWritesDone();
      RemoveHold();
    } else {
      StartWrite(&request_);
    }
  }

  // The stream has ended; OnDone will say how. True: RemoveHold is to be called.
  bool StopWriting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    unsent_.clear();
    return !std::exchange(writes_ended_, true);
  }

  void Tell(const v1::MultiplexPart& part) {
    // What we send is refused only where a request that we cancel has ended already.
    if (part.has_refused()) return;
    std::shared_ptr<Open> request;
    const bool last = part.has_usage() || part.has_error();
    {
      absl::MutexLock lock(&mutex_);
      const auto found = open_.find(part.key());
      if (found == open_.end()) return;
      request = found->second;
      if (last) open_.erase(found);
    }
    if (!part.has_error() && !request->stopped && !request->on_part(part)) {
      request->stopped = true;
      if (!last) Cancel(part.key());
    }
    if (!last) return;
    absl::Status status = part.has_error() ? FromWireStatus(part.error()) : absl::OkStatus();
    if (request->stopped && status.ok()) {
      status = absl::CancelledError("the caller ended the reply");
    }
    request->done(status);
    WriteNext();  // of a stream that Finish closes it may have been the last
  }

  Client::Call call_;
  v1::MultiplexReply reply_;      // the reading thread's
  v1::MultiplexRequest request_;  // gRPC's while writing_

  absl::Mutex mutex_;
  uint64_t last_key_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Open>> open_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::MultiplexRequest> unsent_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool reads_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool writes_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;  // once all is sent, no more comes
  bool over_ ABSL_GUARDED_BY(mutex_) = false;     // end_ is known
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;    // every callback has returned
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
};

Multiplex::Multiplex(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) {}
Multiplex::~Multiplex() = default;

uint64_t Multiplex::Generate(v1::GenerateRequest request, OnPart on_part, Done done,
                             absl::Duration timeout) {
  return stream_->Generate(std::move(request), std::move(on_part), std::move(done), timeout);
}

void Multiplex::Cancel(uint64_t key) { stream_->Cancel(key); }

absl::Status Multiplex::Finish() { return stream_->Finish(); }

std::unique_ptr<Multiplex> Client::Multiplex(const CallOptions& options) const {
  return std::unique_ptr<rivulet::Multiplex>(
      new rivulet::Multiplex(std::make_unique<rivulet::Multiplex::Stream>(*connection_, options)));
}

}  // namespace rivulet
