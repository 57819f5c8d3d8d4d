// SPDX-License-Identifier: Apache-2.0
// Client::Generate and Client::GenerateAsync: one reply, from several calls if calls are lost.
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/cpp/client_error.h"
#include "client/cpp/connection.h"
#include "client/cpp/reply_resume.h"
#include "grpcpp/alarm.h"
#include "grpcpp/completion_queue.h"
#include "rivulet/client.h"

namespace rivulet {
namespace {

// A wait that blocks no thread. Deletes itself.
class Pause {
 public:
  // Calls `then` on a thread of gRPC after `time`, or at once when stop is requested.
  static void Begin(absl::Duration time, const std::stop_token& stop, std::function<void()> then) {
    auto* const pause = new Pause(std::move(then));
    absl::MutexLock lock(&pause->mutex_);
    pause->alarm_.Set(absl::ToChronoTime(absl::Now() + time), [pause](bool) { pause->End(); });
    pause->on_stop_.emplace(stop, Cancel{&pause->alarm_});
  }

 private:
  struct Cancel {
    grpc::Alarm* alarm;
    void operator()() const { alarm->Cancel(); }
  };

  explicit Pause(std::function<void()> then) : then_(std::move(then)) {}

  void End() {
    { absl::MutexLock lock(&mutex_); }  // Begin has returned
    const std::function<void()> then = std::move(then_);
    delete this;
    then();
  }

  std::function<void()> then_;
  absl::Mutex mutex_;
  grpc::Alarm alarm_;
  std::optional<std::stop_callback<Cancel>> on_stop_;
};

// Waits for `time`, or until stop is requested. A thread that waits on a queue of gRPC also serves
// gRPC's sockets, so that a lost connection is restored meanwhile. If no thread serves the sockets,
// every call fails at once, because the last attempt to connect failed.
void Wait(absl::Duration time, const std::stop_token& stop) {
  grpc::CompletionQueue queue;
  grpc::Alarm alarm;
  alarm.Set(&queue, absl::ToChronoTime(absl::Now() + time), nullptr);
  const std::stop_callback on_stop(stop, [&alarm] { alarm.Cancel(); });
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  queue.Shutdown();
  queue.Next(&tag, &ok);
}

// `cookie`: of a call that has brought a message.
void NoteCookie(SessionCookies& cookies, const std::string& session_id, const std::string& cookie,
                ReplyResume* reply) {
  if (session_id.empty()) return;
  cookies.Set(session_id, cookie);
  reply->SetCookie(cookie);
}

}  // namespace

absl::Status Client::Generate(const v1::GenerateRequest& request, OnPart on_part,
                              const CallOptions& options) const {
  const std::string& session_id = request.session().session_id();
  ReplyResume reply(request, options.resume, connection_->max_attempts, options.deadline,
                    connection_->cookies.Get(session_id));
  while (true) {
    if (absl::Status status = connection_->CheckSize(reply.request()); !status.ok()) return status;
    Call call(*connection_, options, reply.cookie());
    const auto reader = connection_->inference->Generate(call.context(), reply.request());
    v1::GenerateReply part;
    bool ended = false, brought = false;
    while (reader->Read(&part)) {
      brought = true;
      if (ended || !reply.Take(&part) || on_part(part)) continue;
      ended = true;  // the parts that are on their way are read and dropped
      call.context()->TryCancel();
    }
    absl::Status status = FromGrpcStatus(reader->Finish());
    if (brought) NoteCookie(connection_->cookies, session_id, call.cookie(), &reply);
    if (ended) return EndedByCaller();
    const std::optional<absl::Duration> wait = reply.NextCall(&status);
    if (!wait) return status;
    Wait(*wait, options.stop);  // once stopped, the next call ends at once
  }
}

// One reply without a thread of its own. Deletes itself when the reply has ended.
class Client::AsyncGenerate final : public grpc::ClientReadReactor<v1::GenerateReply> {
 public:
  AsyncGenerate(const Connection& connection, v1::GenerateRequest request, OnPartAsync on_part,
                GenerateDone done, const CallOptions& options)
      : connection_(connection),
        options_(options),
        session_id_(request.session().session_id()),
        reply_(std::move(request), options.resume, connection.max_attempts, options.deadline,
               connection.cookies.Get(session_id_)),
        on_part_(std::move(on_part)),
        done_(std::move(done)) {}

  void Begin() {
    brought_ = false;
    call_.emplace(connection_, options_, reply_.cookie());
    connection_.inference->async()->Generate(call_->context(), &reply_.request(), this);
    StartRead(&part_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    brought_ = true;
    if (!ended_ && reply_.Take(&part_) && !on_part_(part_)) {
      ended_ = true;  // the parts that are on their way are read and dropped
      call_->context()->TryCancel();
    }
    StartRead(&part_);
  }

  void OnDone(const grpc::Status& grpc_status) override {
    absl::Status status = ended_ ? EndedByCaller() : FromGrpcStatus(grpc_status);
    if (brought_) NoteCookie(connection_.cookies, session_id_, call_->cookie(), &reply_);
    call_.reset();
    const std::optional<absl::Duration> wait = reply_.NextCall(&status);
    if (wait) {
      // Once stopped, the next call ends at once.
      Pause::Begin(*wait, options_.stop, [this] { Begin(); });
      return;
    }
    const GenerateDone done = std::move(done_);
    delete this;  // releases the channel before the caller may: see Client::ScoreAsync
    done(std::move(status));
  }

 private:
  const Connection& connection_;
  const CallOptions options_;
  const std::string session_id_;
  ReplyResume reply_;
  const OnPartAsync on_part_;
  GenerateDone done_;
  v1::GenerateReply part_;
  bool ended_ = false;        // by on_part_
  bool brought_ = false;      // this call has brought something
  std::optional<Call> call_;  // absent in a wait
};

void Client::GenerateAsync(v1::GenerateRequest request, OnPartAsync on_part, GenerateDone done,
                           const CallOptions& options) const {
  if (absl::Status status = connection_->CheckSize(request); !status.ok()) {
    done(std::move(status));
    return;
  }
  (new AsyncGenerate(*connection_, std::move(request), std::move(on_part), std::move(done),
                     options))
      ->Begin();
}

}  // namespace rivulet
