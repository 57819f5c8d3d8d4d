// SPDX-License-Identifier: Apache-2.0
#include "rivulet/multiplex.h"

#include <algorithm>
#include <optional>
#include <set>
#include <stop_token>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/cpp/client_error.h"
#include "client/cpp/connection.h"
#include "client/cpp/multiplex_stream.h"
#include "client/cpp/reply_resume.h"
#include "grpcpp/alarm.h"

namespace rivulet {
namespace {

constexpr absl::Time kAtOnce = absl::InfinitePast();

}  // namespace

// The requests, which outlive the streams that carry them. A stream is opened when there is
// something to send and no stream is open. When a stream is lost, each of its requests waits on its
// own until it is sent again. One alarm wakes all requests that wait, and ends requests whose time
// is over.
//
// Callbacks of the caller run under `calling_`, which is locked before `mutex_`.
class Multiplex::Requests final : public Stream::Owner {
 public:
  Requests(std::shared_ptr<const Client::Connection> connection, const CallOptions& options)
      : connection_(std::move(connection)), options_(options), on_stop_(options.stop, Wake{this}) {}

  ~Requests() override {
    {
      absl::MutexLock lock(&mutex_);
      closing_ = true;
      for (const auto& [key, request] : open_) CancelLocked(key, request.get());
      for (const auto& stream : streams_) stream->Cancel();
    }
    Finish().IgnoreError();
  }

  uint64_t Generate(v1::GenerateRequest request, OnPart on_part, Done done,
                    absl::Duration timeout) {
    const absl::Time deadline = absl::Now() + timeout;
    const auto member = std::make_shared<Request>(
        ReplyResume(std::move(request), options_.resume, connection_->max_attempts,
                    std::min(deadline, options_.deadline)),
        std::move(on_part), std::move(done), deadline);
    v1::MultiplexRequest message = MessageOf(*member);
    message.set_key(~uint64_t{0});  // the key with the longest encoding
    // If the message is too large, the server would end the stream with all its requests.
    absl::Status refused = connection_->CheckSize(message);
    uint64_t key = 0;
    {
      absl::MutexLock lock(&mutex_);
      key = ++last_key_;
      if (!refused.ok()) {
        // The request is not kept.
      } else if (closing_) {
        refused = end_.ok() ? absl::FailedPreconditionError("Finish was called") : end_;
      } else {
        open_[key] = member;
        Send(key, member.get(), std::move(message));
      }
    }
    if (!refused.ok()) member->done(refused);
    return key;
  }

  void Cancel(uint64_t key) {
    absl::MutexLock lock(&mutex_);
    const auto found = open_.find(key);
    if (found != open_.end()) CancelLocked(key, found->second.get());
  }

  absl::Status Finish() {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    if (current_ != nullptr) CloseIfIdle(current_.get());
    Arm();
    mutex_.Await(absl::Condition(this, &Requests::IsOver));
    return end_;
  }

  void OnReply(v1::MultiplexReply* reply) override {
    absl::MutexLock calling(&calling_);
    for (v1::MultiplexPart& part : *reply->mutable_parts()) Tell(&part);
  }

  void OnEnd(Stream* stream, absl::Status status) override {
    if (status.ok()) status = absl::UnavailableError("the stream ended before the request");
    {
      absl::MutexLock calling(&calling_);
      {
        absl::MutexLock lock(&mutex_);
        if (current_.get() == stream) current_ = nullptr;
      }
      for (const auto& [key, request] : OnStream(stream)) {
        if (SendLater(key, request.get(), status)) continue;
        absl::MutexLock lock(&mutex_);
        end_ = status;
      }
    }
    absl::MutexLock lock(&mutex_);
    std::erase_if(streams_, [stream](const auto& other) { return other.get() == stream; });
  }

 private:
  struct Request {
    Request(ReplyResume r, OnPart p, Done d, absl::Time t)
        : reply(std::move(r)), on_part(std::move(p)), done(std::move(d)), deadline(t) {}
    ReplyResume reply;  // guarded by calling_
    const OnPart on_part;
    const Done done;
    const absl::Time deadline;  // of this request alone
    // Under mutex_:
    std::shared_ptr<Stream> stream;            // absent: the request waits
    absl::Time wake = absl::InfiniteFuture();  // as in wakes_
    bool cancelled = false;
  };
  using Listed = std::vector<std::pair<uint64_t, std::shared_ptr<Request>>>;
  struct Wake {
    Requests* requests;
    void operator()() const { requests->WakeAll(); }
  };

  Listed OnStream(const Stream* stream) {
    absl::MutexLock lock(&mutex_);
    Listed listed;
    for (const auto& [key, request] : open_) {
      if (request->stream.get() == stream) listed.emplace_back(key, request);
    }
    return listed;
  }

  // The requests whose time to wake has come.
  Listed Due(absl::Time now) {
    absl::MutexLock lock(&mutex_);
    Listed listed;
    for (auto it = wakes_.begin(); it != wakes_.end() && it->first <= now; ++it) {
      listed.emplace_back(it->second, open_.at(it->second));
    }
    return listed;
  }

  // The message that begins or continues the request, without the key.
  static v1::MultiplexRequest MessageOf(const Request& request) {
    v1::MultiplexRequest message;
    *message.mutable_generate() = request.reply.request();
    if (request.deadline == absl::InfiniteFuture()) return message;
    absl::Duration left = std::max(request.deadline - absl::Now(), absl::Nanoseconds(1));
    message.mutable_timeout()->set_seconds(absl::IDivDuration(left, absl::Seconds(1), &left));
    message.mutable_timeout()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(left)));
    return message;
  }

  void Send(uint64_t key, Request* request, v1::MultiplexRequest message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (current_ == nullptr) {
      current_ = Stream::Start(*connection_, options_, this);
      streams_.push_back(current_);
    }
    ++current_->requests;
    request->stream = current_;
    SetWake(key, request, request->cancelled ? kAtOnce : request->deadline);
    message.set_key(key);
    current_->Write(std::move(message));
  }

  // The request is no longer on a stream.
  void Leave(Request* request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::shared_ptr<Stream> stream = std::move(request->stream);
    if (stream == nullptr) return;
    --stream->requests;
    CloseIfIdle(stream.get());
  }

  void CloseIfIdle(Stream* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (stream->requests > 0 || (stream == current_.get() && !closing_)) return;
    stream->Close();
    if (stream == current_.get()) current_ = nullptr;
  }

  void Tell(v1::MultiplexPart* part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(calling_) {
    // The server refuses only a cancellation whose request has ended already.
    if (part->has_refused()) return;
    const uint64_t key = part->key();
    std::shared_ptr<Request> request;
    const bool last = part->has_usage() || part->has_error();
    {
      absl::MutexLock lock(&mutex_);
      const auto found = open_.find(key);
      if (found == open_.end()) return;  // the request has ended here
      request = found->second;
      // A server that answers UNAVAILABLE may drain, and then refuses all requests on this stream.
      // Another stream may reach another server.
      const bool retire = part->error().code() == static_cast<int>(absl::StatusCode::kUnavailable);
      if (retire && request->stream == current_) current_ = nullptr;
      if (last) Leave(request.get());
    }
    if (part->has_error()) {
      SendLater(key, request.get(), FromWireStatus(part->error()));
    } else if (request->reply.Take(part) && !request->on_part(*part)) {
      End(key, EndedByCaller());
    } else if (last) {
      End(key, absl::OkStatus());
    }
  }

  // The request's call has ended. Returns false if `status` ends the request too.
  bool SendLater(uint64_t key, Request* request, absl::Status status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(calling_) {
    const std::optional<absl::Duration> wait = request->reply.NextCall(&status);
    {
      absl::MutexLock lock(&mutex_);
      Leave(request);
      if (wait || request->cancelled) {
        const bool now = request->cancelled || options_.stop.stop_requested();
        SetWake(key, request, now ? kAtOnce : absl::Now() + *wait);
        return true;
      }
    }
    End(key, status);
    return false;
  }

  void End(uint64_t key, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(calling_) {
    std::shared_ptr<Request> request;
    {
      absl::MutexLock lock(&mutex_);
      const auto found = open_.find(key);
      request = std::move(found->second);
      SetWake(key, request.get(), absl::InfiniteFuture());
      open_.erase(found);
      if (request->stream != nullptr) {  // the server does not know yet
        v1::MultiplexRequest message;
        message.set_key(key);
        message.mutable_cancel();
        request->stream->Write(std::move(message));
        Leave(request.get());
      }
    }
    request->done(status);
  }

  void CancelLocked(uint64_t key, Request* request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    request->cancelled = true;
    SetWake(key, request, kAtOnce);
  }

  // Wakes all requests that wait.
  void WakeAll() {
    absl::MutexLock lock(&mutex_);
    for (const auto& [key, request] : open_) {
      if (request->stream == nullptr) SetWake(key, request.get(), kAtOnce);
    }
  }

  void SetWake(uint64_t key, Request* request, absl::Time time)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    wakes_.erase({request->wake, key});
    request->wake = time;
    if (time != absl::InfiniteFuture()) wakes_.emplace(time, key);
    Arm();
  }

  void Arm() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const absl::Time next = !wakes_.empty() ? wakes_.begin()->first
                            : closing_      ? kAtOnce  // no alarm outlives the requests
                                            : absl::InfiniteFuture();
    if (armed_) {
      if (next < alarm_time_) alarm_->Cancel();  // which calls OnAlarm
    } else if (!wakes_.empty()) {
      armed_ = true;
      alarm_time_ = std::max(next, absl::Now());
      alarm_.emplace();
      alarm_->Set(absl::ToChronoTime(alarm_time_), [this](bool) { OnAlarm(); });
    }
  }

  void OnAlarm() {
    {
      absl::MutexLock calling(&calling_);
      const absl::Time now = absl::Now();
      for (const auto& [key, request] : Due(now)) Continue(key, request.get(), now);
    }
    absl::MutexLock lock(&mutex_);
    armed_ = false;
    Arm();
  }

  // The request's time to wake has come.
  void Continue(uint64_t key, Request* request, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(calling_) {
    absl::Status end;
    {
      absl::MutexLock lock(&mutex_);
      if (request->cancelled) {
        end = EndedByCaller();
      } else if (now >= request->deadline) {
        end = absl::DeadlineExceededError("the timeout of the request has passed");
      } else if (options_.stop.stop_requested()) {
        end = end_ = absl::CancelledError("stop was requested");
      }
    }
    v1::MultiplexRequest message = MessageOf(*request);
    message.set_key(key);
    if (end.ok()) end = connection_->CheckSize(message);  // received tokens have made it larger
    if (!end.ok()) return End(key, end);
    absl::MutexLock lock(&mutex_);
    Send(key, request, std::move(message));
  }

  bool IsOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return open_.empty() && streams_.empty() && !armed_;
  }

  const std::shared_ptr<const Client::Connection> connection_;
  const CallOptions options_;
  absl::Mutex calling_;

  absl::Mutex mutex_;
  uint64_t last_key_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Request>> open_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Stream> current_ ABSL_GUARDED_BY(mutex_);  // on which requests are sent
  std::vector<std::shared_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);  // that have not ended
  // Times at which requests are sent again or end, with their keys.
  std::set<std::pair<absl::Time, uint64_t>> wakes_ ABSL_GUARDED_BY(mutex_);
  std::optional<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);
  bool armed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time alarm_time_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);

  std::stop_callback<Wake> on_stop_;  // the last member: it may be called while it is made
};

Multiplex::Multiplex(std::unique_ptr<Requests> requests) : requests_(std::move(requests)) {}
Multiplex::~Multiplex() = default;

uint64_t Multiplex::Generate(v1::GenerateRequest request, OnPart on_part, Done done,
                             absl::Duration timeout) {
  return requests_->Generate(std::move(request), std::move(on_part), std::move(done), timeout);
}

void Multiplex::Cancel(uint64_t key) { requests_->Cancel(key); }

absl::Status Multiplex::Finish() { return requests_->Finish(); }

std::unique_ptr<Multiplex> Client::Multiplex(const CallOptions& options) const {
  return std::unique_ptr<rivulet::Multiplex>(
      new rivulet::Multiplex(std::make_unique<rivulet::Multiplex::Requests>(connection_, options)));
}

}  // namespace rivulet
