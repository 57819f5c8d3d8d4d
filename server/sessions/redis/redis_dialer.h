// SPDX-License-Identifier: Apache-2.0
// RedisDialer: from a URL to a connection on which commands may be sent. It asks the Sentinels
// where Redis is, tries all addresses of a name, logs in, and checks that this Redis is suitable.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/sessions/redis/redis_reply.h"
#include "server/sessions/redis/redis_stream.h"
#include "server/sessions/redis/redis_url.h"

namespace rivulet {

using RedisTime = std::chrono::steady_clock::time_point;

// A master to which commands may be sent.
struct RedisPeer {
  std::unique_ptr<RedisStream> stream;
  std::unique_ptr<RedisReplyReader> reader;  // with the bytes already read
  RedisFacts facts;
};

// Thread: one, which blocks SIGPIPE.
class RedisDialer {
 public:
  // Waits until the descriptor is ready for `events` of poll() (OK), or until `deadline`
  // (DEADLINE_EXCEEDED). Any other error ends Dial with it.
  using Wait = std::function<absl::Status(int fd, short events, RedisTime deadline)>;
  // `permissions`: a command whose answer lists the commands that the user may not call.
  RedisDialer(RedisOptions options, std::vector<std::string> permissions, Wait wait);

  // Errors: FAILED_PRECONDITION (SESSION_STORE_REFUSED) and INVALID_ARGUMENT (CONFIG_INVALID; a
  // file): this cannot succeed until somebody changes the setup; UNAVAILABLE: not now; the errors
  // of `wait`. Messages name addresses and settings, never a password.
  absl::StatusOr<RedisPeer> Dial();

 private:
  // A place to connect to: one address of a host, and the name that its certificate must have.
  struct Place {
    RedisStream::SocketAddress address;
    std::string name;
  };
  // A connection that is not ready yet.
  struct Caller {
    Place place;
    RedisPeer peer;
    bool answered = false;  // one command or more
  };
  // The user to log in as, and where.
  struct Login {
    absl::string_view who;  // "Redis", "Sentinel"
    std::string user, password_file, password_setting;
  };

  absl::StatusOr<RedisPeer> DialRedis(const RedisAddress& address);
  absl::StatusOr<RedisAddress> AskSentinels();
  absl::StatusOr<RedisAddress> AskSentinel(const RedisAddress& address);
  // Connects and logs in.
  absl::StatusOr<Caller> Connect(const RedisAddress& address, const Login& login);
  absl::StatusOr<std::unique_ptr<RedisStream>> ConnectTo(const Place& place);
  absl::StatusOr<std::vector<RedisStream::SocketAddress>> Resolve(const RedisAddress& address);
  absl::Status LogIn(Caller* caller, const Login& login);
  absl::Status Greet(Caller* caller);
  // An answer that is not an error.
  absl::StatusOr<RedisReply> Ask(Caller* caller, const std::vector<std::string>& command);
  absl::StatusOr<RedisReply> AskRaw(Caller* caller, const std::vector<std::string>& command);
  // The known reason why a connection was lost; else `status`, with which it was lost.
  absl::Status WhyLost(const Caller& caller, const absl::Status& status);

  const RedisOptions options_;
  const std::vector<std::string> permissions_;
  const Wait wait_;
  RedisTls tls_;         // for this Dial; nullptr: no TLS
  size_t sentinel_ = 0;  // index of the Sentinel that answered last
};

// Reads an answer to INFO; `text` may be anything. Errors: FAILED_PRECONDITION
// (SESSION_STORE_REFUSED): Redis is not suitable; UNAVAILABLE: it is loading its data, or is no
// master.
absl::Status ReadRedisInfo(absl::string_view text, RedisFacts* facts);

}  // namespace rivulet
