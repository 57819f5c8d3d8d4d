// SPDX-License-Identifier: Apache-2.0
// RedisConnection: one connection to Redis that is made again whenever it is lost. Calls are sent
// at once, in their order, without waiting for the answers to earlier calls.
//
// Only its place in the order tells to which call an answer belongs. So when a call gets no answer
// in time, or bytes that are no answer arrive, the connection is closed and all sent calls end: no
// answer can reach the wrong call.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/base/mutex.h"
#include "server/sessions/redis/redis_dialer.h"
#include "server/sessions/redis/redis_reply.h"
#include "server/sessions/redis/redis_url.h"

namespace rivulet {

// Bytes that wait to be sent. Sent bytes are freed while other bytes still wait, because on a busy
// link some bytes always wait. Thread: one.
class UnsentBytes {
 public:
  absl::string_view left() const { return absl::string_view(bytes_).substr(begin_); }
  size_t held_bytes() const { return bytes_.size(); }  // at most 1 MiB + 2 * left().size()
  void Append(absl::string_view bytes) { bytes_.append(bytes.data(), bytes.size()); }
  // The first `size` bytes of left() were sent.
  void Drop(size_t size);
  void Clear() { Drop(left().size()); }

 private:
  std::string bytes_;
  size_t begin_ = 0;  // of left()
};

// Thread: any, but it must not be destroyed on its own thread, which calls `done`.
class RedisConnection {
 public:
  // `permissions`: as RedisDialer. REQUIRES: CheckRedisOptions is OK.
  RedisConnection(RedisOptions options, std::vector<std::string> permissions);
  // Calls that have not ended end with UNAVAILABLE.
  ~RedisConnection();
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  // `done` is called once, and must not block. A reply may be an error of Redis. Errors:
  // UNAVAILABLE: the command was not sent, or it is unknown whether it was carried out:
  // - no answer came within the call-timeout after it was sent;
  // - the connection was lost, or Redis is no longer the master (READONLY, LOADING, MASTERDOWN);
  // - there is no connection: calls wait while one is made, and end at once between two attempts;
  // - too many calls, or calls with too many bytes, have not ended.
  // RESOURCE_EXHAUSTED: the command alone is larger than the limit on bytes.
  using Done = std::function<void(absl::StatusOr<RedisReply>)>;
  void Call(std::vector<std::string> command, Done done);
  // Calls `function` on the connection's thread.
  void Post(std::function<void()> function);

  // Waits for the first attempt to connect. OK: it connected, or Redis could not be reached, which
  // is no error unless options.must_be_reachable. Errors: as RedisDialer::Dial. To be called once.
  absl::Status AwaitFirstAttempt();

  // Whether calls are sent to a Redis now. One that hangs is noticed at the next call, or at the
  // question that is sent after options.idle_time without a call.
  bool connected() const { return connected_; }

 private:
  struct Pending {
    std::vector<std::string> command;
    Done done;
    int64_t bytes = 0;
    RedisTime deadline;
    std::function<void()> instead;  // called instead of sending a command
  };

  void Add(Pending pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Count(const Pending& ended);
  void Loop();
  // Uses a connection until it is lost.
  absl::Status Serve(RedisPeer* peer);
  absl::Status Send(RedisPeer* peer);
  // The result of one turn of reading.
  struct Pass {
    bool all_read = true;   // nothing more waits to be read
    bool answered = false;  // a complete answer came
  };
  absl::StatusOr<Pass> ReadAnswers(RedisPeer* peer);
  absl::Status Answer(RedisReply reply);
  // Waits for `delay`; calls that come meanwhile end with `why`.
  void Pause(absl::Duration delay, const absl::Status& why);
  // RedisDialer::Wait; new calls wait meanwhile, and end in time. CANCELLED: the destructor runs.
  absl::Status WaitForDialer(int fd, short events, RedisTime deadline);
  // Waits for the descriptor (-1: none) or for a new call, until `deadline` at the latest.
  void Poll(int fd, short events, RedisTime deadline);
  void TakeNew();
  void Expire();
  void End(const Pending& pending, absl::StatusOr<RedisReply> result);
  void EndAll(std::deque<Pending>* calls, const absl::Status& status);
  void Lost(const absl::Status& status);
  void TellFirstAttempt(const absl::Status& status);

  const RedisOptions options_;
  RedisDialer dialer_;
  const int wake_;  // eventfd: `new_` or `stop_` has changed
  std::atomic<bool> stop_ = false, connected_ = false;

  Mutex mutex_;
  CondVar attempted_;
  std::deque<Pending> new_ ABSL_GUARDED_BY(mutex_);
  int64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;  // that have not ended
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool first_attempt_ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status first_attempt_ ABSL_GUARDED_BY(mutex_);

  // Used only by the thread.
  std::deque<Pending> waiting_, sent_;  // in the order of the calls
  UnsentBytes unsent_;                  // of calls in sent_
  bool useful_ = false;                 // this connection has answered a call
  std::string last_reported_error_;     // the last message to on_disconnected
  std::thread thread_;                  // last: everything above exists when it starts
};

}  // namespace rivulet
