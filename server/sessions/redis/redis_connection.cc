// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/redis/redis_connection.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/random_word.h"
#include "model/base/thread.h"

namespace rivulet {
namespace {

using std::chrono::steady_clock;

constexpr absl::Duration kFirstPause = absl::Milliseconds(50), kLongestPause = absl::Seconds(2);
constexpr size_t kReadBytes = size_t{64} << 10;
constexpr int kReadsAtOnce = 16;
constexpr int kLatePasses = 16;                 // of kReadsAtOnce: more than a socket holds
constexpr size_t kKeptBytes = size_t{1} << 20;  // of memory for what is sent

// These errors say that another master has taken over, or that Redis is not ready.
bool MustDialAgain(const RedisReply& reply) {
  return reply.IsError("READONLY") || reply.IsError("LOADING") || reply.IsError("MASTERDOWN");
}

int NewEventFd() {
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) std::abort();  // no descriptors at the start of the server
  return fd;
}

}  // namespace

void UnsentBytes::Drop(size_t size) {
  begin_ += size;
  // Never moves more bytes than were sent before.
  if (begin_ < bytes_.size() && (begin_ <= kKeptBytes || 2 * begin_ <= bytes_.size())) return;
  bytes_.erase(0, begin_);
  begin_ = 0;
  if (bytes_.empty() && bytes_.capacity() > kKeptBytes) bytes_.shrink_to_fit();
}

RedisConnection::RedisConnection(RedisOptions options, std::vector<std::string> permissions)
    : options_(std::move(options)),
      dialer_(options_, std::move(permissions),
              [this](int fd, short events, RedisTime deadline) {
                return WaitForDialer(fd, events, deadline);
              }),
      wake_(NewEventFd()),
      thread_([this] { Loop(); }) {}

RedisConnection::~RedisConnection() {
  stop_ = true;
  eventfd_write(wake_, 1);
  thread_.join();
  close(wake_);
}

void RedisConnection::Call(std::vector<std::string> command, Done done) {
  Pending pending;
  for (const std::string& arg : command) pending.bytes += static_cast<int64_t>(arg.size()) + 16;
  if (pending.bytes > options_.most_bytes) {
    return Post([done = std::move(done), bytes = pending.bytes, most = options_.most_bytes] {
      done(absl::ResourceExhaustedError(absl::StrCat("a call of ", bytes,
                                                     " bytes is larger than the ", most,
                                                     " that may be under way to Redis")));
    });
  }
  MutexLock lock(&mutex_);
  if (calls_ >= options_.most_calls || bytes_ + pending.bytes > options_.most_bytes) {
    pending.instead = [done = std::move(done), calls = calls_, bytes = bytes_] {
      done(absl::UnavailableError(absl::StrCat("too much is under way to Redis: ", calls,
                                               " calls with ", bytes, " bytes")));
    };
    pending.bytes = 0;
  } else {
    pending.command = std::move(command);
    pending.done = std::move(done);
    pending.deadline = steady_clock::now() + absl::ToChronoNanoseconds(options_.call_timeout);
  }
  Add(std::move(pending));
}

void RedisConnection::Post(std::function<void()> function) {
  Pending pending;
  pending.instead = std::move(function);
  MutexLock lock(&mutex_);
  Add(std::move(pending));
}

void RedisConnection::Add(Pending pending) {
  ++calls_;
  bytes_ += pending.bytes;
  if (new_.empty()) eventfd_write(wake_, 1);
  new_.push_back(std::move(pending));
}

absl::Status RedisConnection::AwaitFirstAttempt() {
  MutexLock lock(&mutex_);
  while (!first_attempt_ended_) attempted_.Wait(&mutex_);
  const bool allowed = absl::IsUnavailable(first_attempt_) && !options_.must_be_reachable;
  return allowed ? absl::OkStatus() : std::move(first_attempt_);
}

void RedisConnection::TellFirstAttempt(const absl::Status& status) {
  MutexLock lock(&mutex_);
  if (first_attempt_ended_) return;
  first_attempt_ended_ = true;
  // A new status, because a copy would share memory with the thread's status, and ThreadSanitizer
  // does not see Abseil's reference count.
  first_attempt_ = MakeError(status.code(), status.message(), GetErrorDetail(status));
  attempted_.NotifyAll();
}

void RedisConnection::Loop() {
  NameThread("redis");
  // OpenSSL writes to sockets whose other end may be gone.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  absl::Duration pause = kFirstPause;
  while (!stop_) {
    absl::StatusOr<RedisPeer> peer = dialer_.Dial();
    absl::Status why = peer.status();
    if (peer.ok()) {
      last_reported_error_.clear();
      connected_ = true;
      if (options_.on_connected != nullptr) options_.on_connected(peer->facts);
      TellFirstAttempt(why);
      const RedisTime begun = steady_clock::now();
      useful_ = false;
      why = Annotate(Serve(&*peer), absl::StrCat("Redis at ", peer->facts.address));
      peer->stream.reset();
      Lost(why);
      // A connection that lasted is made again at once; one that is lost again and again is not.
      const bool lasted = steady_clock::now() - begun > absl::ToChronoNanoseconds(kLongestPause);
      if (lasted || useful_) pause = kFirstPause;
      if (lasted) continue;
    } else {
      Lost(why);
      TellFirstAttempt(why);
    }
    // Half of the pause is jitter, so that replicas do not reconnect together.
    Pause(pause * (0.5 + 0.5 * RandomFraction()), why);
    pause = std::min(2 * pause, kLongestPause);
  }
  TellFirstAttempt(absl::UnavailableError("the session store is being destroyed"));
  do {
    TakeNew();
    EndAll(&waiting_, absl::UnavailableError("the session store is being destroyed"));
    MutexLock lock(&mutex_);
    if (new_.empty()) break;
  } while (true);
}

// Ends the calls that were sent, or waited, with the problem; for these calls any problem means
// that Redis cannot be reached.
void RedisConnection::Lost(const absl::Status& status) {
  connected_ = false;
  const absl::Status unavailable = absl::UnavailableError(
      stop_ ? absl::string_view("the session store is being destroyed") : status.message());
  if (!stop_ && last_reported_error_ != status.message()) {
    last_reported_error_ = std::string(status.message());
    if (options_.on_disconnected != nullptr) options_.on_disconnected(unavailable);
  }
  unsent_.Clear();
  EndAll(&sent_, unavailable);
  EndAll(&waiting_, unavailable);
}

void RedisConnection::Pause(absl::Duration delay, const absl::Status& why) {
  const RedisTime end = steady_clock::now() + absl::ToChronoNanoseconds(delay);
  while (!stop_ && steady_clock::now() < end) {
    Poll(-1, 0, end);
    TakeNew();
    EndAll(&waiting_, absl::UnavailableError(why.message()));
  }
}

absl::Status RedisConnection::WaitForDialer(int fd, short events, RedisTime deadline) {
  while (true) {
    pollfd ready = {fd, events, 0};
    if (stop_) return absl::CancelledError("the session store is being destroyed");
    if (poll(&ready, 1, 0) > 0) return absl::OkStatus();
    if (steady_clock::now() >= deadline) return absl::DeadlineExceededError("");
    RedisTime next = deadline;
    if (!waiting_.empty()) next = std::min(next, waiting_.front().deadline);
    Poll(fd, events, next);
    TakeNew();
    Expire();
  }
}

void RedisConnection::Poll(int fd, short events, RedisTime deadline) {
  pollfd ready[] = {{wake_, POLLIN, 0}, {fd, events, 0}};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now());
  poll(ready, fd < 0 ? 1 : 2, static_cast<int>(std::clamp<int64_t>(left.count(), 0, 3'600'000)));
  eventfd_t count = 0;
  eventfd_read(wake_, &count);
}

void RedisConnection::TakeNew() {
  std::deque<Pending> taken;
  {
    MutexLock lock(&mutex_);
    taken.swap(new_);
  }
  for (Pending& pending : taken) {
    if (pending.instead == nullptr) {
      waiting_.push_back(std::move(pending));
    } else {
      Count(pending);
      pending.instead();
    }
  }
}

void RedisConnection::Expire() {
  while (!waiting_.empty() && waiting_.front().deadline <= steady_clock::now()) {
    const Pending expired = std::move(waiting_.front());
    waiting_.pop_front();
    End(expired, absl::UnavailableError(absl::StrCat("there was no connection to Redis within ",
                                                     absl::FormatDuration(options_.call_timeout))));
  }
}

void RedisConnection::Count(const Pending& ended) {
  MutexLock lock(&mutex_);
  --calls_;
  bytes_ -= ended.bytes;
}

void RedisConnection::End(const Pending& pending, absl::StatusOr<RedisReply> result) {
  Count(pending);
  pending.done(std::move(result));
}

void RedisConnection::EndAll(std::deque<Pending>* calls, const absl::Status& status) {
  while (!calls->empty()) {
    const Pending pending = std::move(calls->front());
    calls->pop_front();
    End(pending, status);
  }
}

absl::Status RedisConnection::Serve(RedisPeer* peer) {
  Pass pass;
  int late = 0;  // passes, one after another, after the deadline and without an answer
  while (!stop_) {
    TakeNew();
    for (; !waiting_.empty(); waiting_.pop_front()) {
      Pending& pending = waiting_.front();
      unsent_.Append(FormatRedisCommand(pending.command));
      pending.command.clear();
      // A new deadline: a call that has waited for the connection must not end it at once.
      pending.deadline = steady_clock::now() + absl::ToChronoNanoseconds(options_.call_timeout);
      sent_.push_back(std::move(pending));
    }
    RIVULET_RETURN_IF_ERROR(Send(peer));
    RedisTime deadline = steady_clock::now();
    const bool idle = sent_.empty() && pass.all_read;
    if (pass.all_read) {
      deadline =
          idle ? deadline + absl::ToChronoNanoseconds(options_.idle_time) : sent_.front().deadline;
    }
    const short more = unsent_.left().empty() ? 0 : POLLOUT;
    Poll(peer->stream->fd(), static_cast<short>(peer->stream->events() | POLLIN | more), deadline);
    // So that a Redis that hangs is noticed without calls.
    if (idle && steady_clock::now() >= deadline) Call({"TIME"}, [](const auto&) {});
    RIVULET_ASSIGN_OR_RETURN(pass, ReadAnswers(peer));
    // After reading, because answers may have arrived while this thread did not run. They are read
    // within kLatePasses; an endless answer is not.
    const bool expired = !sent_.empty() && sent_.front().deadline <= steady_clock::now();
    late = expired && !pass.answered ? late + 1 : 0;
    if (expired && (pass.all_read || late > kLatePasses)) {
      return absl::UnavailableError(
          absl::StrCat("did not answer within ", absl::FormatDuration(options_.call_timeout)));
    }
  }
  return absl::OkStatus();
}

absl::Status RedisConnection::Send(RedisPeer* peer) {
  while (!unsent_.left().empty()) {
    RIVULET_ASSIGN_OR_RETURN(const size_t written, peer->stream->Write(unsent_.left()));
    if (written == 0) return absl::OkStatus();
    unsent_.Drop(written);
  }
  return absl::OkStatus();
}

absl::StatusOr<RedisConnection::Pass> RedisConnection::ReadAnswers(RedisPeer* peer) {
  char buffer[kReadBytes];
  Pass pass{.all_read = false};
  for (int i = 0; i < kReadsAtOnce && !pass.all_read; ++i) {
    RIVULET_ASSIGN_OR_RETURN(const size_t read, peer->stream->Read(buffer, kReadBytes));
    pass.all_read = read == 0;
    peer->reader->Feed({buffer, read});
    while (true) {
      RIVULET_ASSIGN_OR_RETURN(std::optional<RedisReply> reply, peer->reader->Next());
      if (!reply.has_value()) break;
      RIVULET_RETURN_IF_ERROR(Answer(*std::move(reply)));
      pass.answered = true;
    }
  }
  return pass;
}

absl::Status RedisConnection::Answer(RedisReply reply) {
  if (sent_.empty()) return absl::UnavailableError("has sent an answer that no call waits for");
  if (MustDialAgain(reply)) {
    // Lost ends this call and the calls behind it.
    return absl::UnavailableError(absl::StrCat("says ", reply.text));
  }
  useful_ = true;
  const Pending answered = std::move(sent_.front());
  sent_.pop_front();
  End(answered, std::move(reply));
  return absl::OkStatus();
}

}  // namespace rivulet
