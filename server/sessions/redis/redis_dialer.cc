// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/redis/redis_dialer.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "model/base/error.h"
#include "model/base/file.h"
#include "model/base/thread.h"

namespace rivulet {
namespace {

constexpr int kOldestMajor = 7;  // PEXPIRE with GT, scripts with flags, redis.acl_check_cmd
constexpr size_t kMostPasswordBytes = 4096;

RedisTime After(absl::Duration timeout) {
  return std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
}

// Turns DEADLINE_EXCEEDED of a wait into the error that it means here.
absl::Status OrTimeout(absl::Status waited, absl::string_view what, absl::Duration timeout) {
  if (!absl::IsDeadlineExceeded(waited)) return waited;
  return absl::UnavailableError(absl::StrCat(what, " within ", absl::FormatDuration(timeout)));
}

// The text of an error of Redis, as part of one line.
std::string Said(const RedisReply& reply) {
  return absl::StrCat("\"", absl::CHexEscape(absl::string_view(reply.text).substr(0, 200)), "\"");
}

// getaddrinfo, which may wait without a limit, on a thread of its own. The thread may outlive the
// caller, so it owns its part of this.
class Lookup {
 public:
  static std::shared_ptr<Lookup> Start(const RedisAddress& address) {
    auto lookup = std::make_shared<Lookup>(address);
    std::thread([lookup] {
      NameThread("redis-lookup");
      lookup->Run();
    }).detach();
    return lookup;
  }
  explicit Lookup(RedisAddress address) : address_(std::move(address)) {}
  ~Lookup() {
    if (found_ != nullptr) freeaddrinfo(found_);
    close(done_);
  }
  Lookup(const Lookup&) = delete;
  Lookup& operator=(const Lookup&) = delete;

  int fd() const { return done_; }  // readable: the rest may be called
  absl::StatusOr<std::vector<RedisStream::SocketAddress>> Result() const {
    const int error = error_.load(std::memory_order_acquire);
    if (error != 0) {
      return absl::UnavailableError(
          absl::StrCat(address_.host, " has no address: ", gai_strerror(error)));
    }
    std::vector<RedisStream::SocketAddress> addresses;
    for (const addrinfo* one = found_; one != nullptr; one = one->ai_next) {
      RedisStream::SocketAddress& address = addresses.emplace_back();
      std::memcpy(&address.bytes, one->ai_addr, one->ai_addrlen);
      address.size = one->ai_addrlen;
    }
    return addresses;
  }

 private:
  void Run() {
    addrinfo hints = {};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV;
    addrinfo* found = nullptr;
    const int error =
        getaddrinfo(address_.host.c_str(), std::to_string(address_.port).c_str(), &hints, &found);
    found_ = found;
    error_.store(error, std::memory_order_release);
    eventfd_write(done_, 1);
  }

  const RedisAddress address_;
  const int done_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  addrinfo* found_ = nullptr;
  std::atomic<int> error_ = EAI_AGAIN;
};

// Errors of Redis that pass by themselves; all other errors at log-in mean a wrong setting.
bool Passes(const RedisReply& error) {
  return error.IsError("LOADING") || error.IsError("BUSY") || error.IsError("MASTERDOWN") ||
         error.IsError("READONLY") || absl::StartsWith(error.text, "ERR max number of clients");
}

absl::StatusOr<std::string> ReadPassword(const std::string& setting, const std::string& path) {
  absl::StatusOr<std::string> text = ReadSmallFile(path, kMostPasswordBytes);
  if (!text.ok()) {
    return InvalidField("CONFIG_INVALID", setting,
                        absl::StrCat(setting, " ", path, ": ", text.status().message()));
  }
  std::string password(absl::string_view(*text).substr(0, text->find_first_of("\r\n")));
  if (password.empty()) {
    return InvalidField("CONFIG_INVALID", setting,
                        absl::StrCat(setting, " ", path, " has an empty first line"));
  }
  return password;
}

}  // namespace

absl::Status ReadRedisInfo(absl::string_view text, RedisFacts* facts) {
  std::map<absl::string_view, absl::string_view> info;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(absl::StripAsciiWhitespace(line), absl::MaxSplits(':', 1));
    info.insert(field);
  }
  // Valkey reports the version of Redis that it is compatible with, and names its mode differently.
  const absl::string_view version = info["redis_version"];
  const auto mode = [&](absl::string_view name) {
    return info["redis_mode"] == name || info["server_mode"] == name;
  };
  int major = 0;
  if (mode("cluster") || info["cluster_enabled"] == "1") {
    return RedisRefused("runs in cluster mode, which is not supported; use one Redis or Sentinel");
  }
  if (mode("sentinel")) {
    return RedisRefused("is a Sentinel: its URL begins with redis+sentinel:// and names a master");
  }
  if (!absl::SimpleAtoi(version.substr(0, version.find('.')), &major) || major < kOldestMajor) {
    return RedisRefused(absl::StrCat("has version \"", absl::CHexEscape(version),
                                     "\"; sessions need Redis 7.0 or later, or Valkey"));
  }
  if (info["loading"] == "1") return absl::UnavailableError("is loading its data");
  if (info["role"] != "master") return absl::UnavailableError("is a replica, not the master");
  facts->version = std::string(version);
  facts->max_memory_policy = std::string(info["maxmemory_policy"]);
  facts->append_only_file = info["aof_enabled"] == "1";
  if (!absl::SimpleAtoi(info["maxmemory"], &facts->max_memory)) facts->max_memory = 0;
  return absl::OkStatus();
}

RedisDialer::RedisDialer(RedisOptions options, std::vector<std::string> permissions, Wait wait)
    : options_(std::move(options)), permissions_(std::move(permissions)), wait_(std::move(wait)) {}

absl::StatusOr<RedisPeer> RedisDialer::Dial() {
  if (options_.url.tls) {
    RIVULET_ASSIGN_OR_RETURN(tls_, MakeRedisTls(options_));
  }
  if (options_.url.master.empty()) return DialRedis(options_.url.addresses.front());
  RIVULET_ASSIGN_OR_RETURN(const RedisAddress master, AskSentinels());
  return DialRedis(master);
}

absl::StatusOr<RedisPeer> RedisDialer::DialRedis(const RedisAddress& address) {
  const Login login{"Redis", options_.url.user, options_.password_file,
                    "session-store-password-file"};
  RIVULET_ASSIGN_OR_RETURN(Caller caller, Connect(address, login));
  caller.peer.facts.address = address.ToString();
  const absl::Status greeted = Greet(&caller);
  if (!greeted.ok()) return Annotate(greeted, absl::StrCat("Redis at ", address.ToString()));
  return std::move(caller.peer);
}

absl::StatusOr<RedisAddress> RedisDialer::AskSentinels() {
  absl::Status refused, unreachable;
  for (size_t i = 0; i < options_.url.addresses.size(); ++i) {
    absl::StatusOr<RedisAddress> master = AskSentinel(options_.url.addresses[sentinel_]);
    if (master.ok()) return master;
    if (absl::IsUnavailable(master.status())) {
      unreachable = master.status();
    } else if (absl::IsFailedPrecondition(master.status())) {
      refused = master.status();
    } else {
      return master;
    }
    sentinel_ = (sentinel_ + 1) % options_.url.addresses.size();
  }
  return refused.ok() ? unreachable : refused;
}

absl::StatusOr<RedisAddress> RedisDialer::AskSentinel(const RedisAddress& address) {
  const Login login{"Sentinel", options_.sentinel_user, options_.sentinel_password_file,
                    "session-store-sentinel-password-file"};
  RIVULET_ASSIGN_OR_RETURN(Caller caller, Connect(address, login));
  const std::string who = absl::StrCat("Sentinel at ", address.ToString());
  const absl::StatusOr<RedisReply> reply =
      Ask(&caller, {"SENTINEL", "GET-MASTER-ADDR-BY-NAME", options_.url.master});
  if (!reply.ok()) return Annotate(reply.status(), who);
  if (reply->kind == RedisReply::Kind::kNil) {
    return RedisRefused(
        absl::StrCat(who, ": it knows no master with the name \"", options_.url.master, "\""));
  }
  RedisAddress master;
  const std::vector<RedisReply>& parts = reply->elements;
  if (parts.size() != 2 || parts[0].text.empty() ||
      !absl::SimpleAtoi(parts[1].text, &master.port) || master.port < 1 || master.port > 65535) {
    return absl::UnavailableError(absl::StrCat(who, ": its answer is no address"));
  }
  master.host = parts[0].text;
  return master;
}

absl::StatusOr<RedisDialer::Caller> RedisDialer::Connect(const RedisAddress& address,
                                                         const Login& login) {
  RIVULET_ASSIGN_OR_RETURN(const std::vector<RedisStream::SocketAddress> addresses,
                           Resolve(address));
  const std::string& name = options_.server_name.empty() ? address.host : options_.server_name;
  const std::string who = absl::StrCat(login.who, " at ", address.ToString());
  absl::Status status = absl::UnavailableError(absl::StrCat(who, " has no address"));
  for (const RedisStream::SocketAddress& one : addresses) {
    Caller caller;
    caller.place = {one, name};
    absl::StatusOr<std::unique_ptr<RedisStream>> stream = ConnectTo(caller.place);
    if (stream.ok()) {
      caller.peer.stream = *std::move(stream);
      caller.peer.reader = std::make_unique<RedisReplyReader>();
      status = LogIn(&caller, login);
      if (status.ok()) return caller;
      return Annotate(status, who);
    }
    status = Annotate(stream.status(), who);
    if (!absl::IsUnavailable(status)) break;
  }
  return status;
}

absl::StatusOr<std::vector<RedisStream::SocketAddress>> RedisDialer::Resolve(
    const RedisAddress& address) {
  const std::shared_ptr<Lookup> lookup = Lookup::Start(address);
  RIVULET_RETURN_IF_ERROR(OrTimeout(wait_(lookup->fd(), POLLIN, After(options_.connect_timeout)),
                                    absl::StrCat("no address was found for ", address.host),
                                    options_.connect_timeout));
  return lookup->Result();
}

absl::StatusOr<std::unique_ptr<RedisStream>> RedisDialer::ConnectTo(const Place& place) {
  const RedisTime deadline = After(options_.connect_timeout);
  RIVULET_ASSIGN_OR_RETURN(std::unique_ptr<RedisStream> stream,
                           RedisStream::Open(place.address, tls_.get(), place.name));
  while (true) {
    RIVULET_ASSIGN_OR_RETURN(const bool connected, stream->Connect());
    if (connected) return stream;
    RIVULET_RETURN_IF_ERROR(OrTimeout(wait_(stream->fd(), stream->events(), deadline),
                                      "could not be connected to", options_.connect_timeout));
  }
}

absl::Status RedisDialer::LogIn(Caller* caller, const Login& login) {
  if (login.password_file.empty()) return absl::OkStatus();
  RIVULET_ASSIGN_OR_RETURN(const std::string password,
                           ReadPassword(login.password_setting, login.password_file));
  std::vector<std::string> command = {"AUTH"};
  if (!login.user.empty()) command.push_back(login.user);
  command.push_back(password);
  RIVULET_ASSIGN_OR_RETURN(const RedisReply reply, AskRaw(caller, command));
  if (reply.IsError("WRONGPASS")) {
    return RedisRefused(absl::StrCat("refuses the user \"",
                                     login.user.empty() ? "default" : login.user,
                                     "\" with the password in ", login.password_setting));
  }
  if (reply.kind != RedisReply::Kind::kError) return absl::OkStatus();
  if (Passes(reply)) return absl::UnavailableError(absl::StrCat("says ", Said(reply)));
  // The answer may repeat the password: Redis answers an unknown command with its arguments.
  return RedisRefused(absl::StrCat("does not take the password in ", login.password_setting,
                                   "; perhaps its default user has none"));
}

absl::Status RedisDialer::Greet(Caller* caller) {
  if (options_.url.database != 0) {
    RIVULET_RETURN_IF_ERROR(
        Ask(caller, {"SELECT", std::to_string(options_.url.database)}).status());
  }
  RIVULET_ASSIGN_OR_RETURN(const RedisReply info, Ask(caller, {"INFO"}));
  RIVULET_RETURN_IF_ERROR(ReadRedisInfo(info.text, &caller->peer.facts));
  RIVULET_ASSIGN_OR_RETURN(const RedisReply lacks, Ask(caller, permissions_));
  if (lacks.elements.empty()) return absl::OkStatus();
  const auto name = [](std::string* out, const RedisReply& reply) {
    absl::StrAppend(out, reply.text);
  };
  return RedisRefused(absl::StrCat("does not let the user \"",
                                   options_.url.user.empty() ? "default" : options_.url.user,
                                   "\" call ", absl::StrJoin(lacks.elements, ", ", name),
                                   " on keys that begin with \"", options_.key_prefix, "\""));
}

absl::StatusOr<RedisReply> RedisDialer::Ask(Caller* caller,
                                            const std::vector<std::string>& command) {
  RIVULET_ASSIGN_OR_RETURN(RedisReply reply, AskRaw(caller, command));
  if (reply.kind != RedisReply::Kind::kError) return reply;
  if (Passes(reply)) return absl::UnavailableError(absl::StrCat("says ", Said(reply)));
  if (reply.IsError("NOAUTH")) {
    return RedisRefused("needs a password, in a password-file of the session store's settings");
  }
  return RedisRefused(absl::StrCat("refuses ", command[0], ": ", Said(reply)));
}

absl::StatusOr<RedisReply> RedisDialer::AskRaw(Caller* caller,
                                               const std::vector<std::string>& command) {
  const RedisTime deadline = After(options_.call_timeout);
  RedisStream& stream = *caller->peer.stream;
  const std::string bytes = FormatRedisCommand(command);
  absl::string_view unsent = bytes;
  const auto wait = [&] {
    return OrTimeout(wait_(stream.fd(), stream.events(), deadline),
                     absl::StrCat("did not answer ", command[0]), options_.call_timeout);
  };
  while (!unsent.empty()) {
    const absl::StatusOr<size_t> written = stream.Write(unsent);
    if (!written.ok()) return WhyLost(*caller, written.status());
    unsent.remove_prefix(*written);
    if (*written == 0) RIVULET_RETURN_IF_ERROR(wait());
  }
  char buffer[size_t{16} << 10];
  while (true) {
    absl::StatusOr<std::optional<RedisReply>> reply = caller->peer.reader->Next();
    if (!reply.ok()) {
      return RedisRefused(absl::StrCat("does not answer as Redis does: ", reply.status().message(),
                                       tls_ == nullptr ? "; does it expect TLS (rediss://)?" : ""));
    }
    if (reply->has_value()) {
      caller->answered = true;
      return **std::move(reply);
    }
    const absl::StatusOr<size_t> read = stream.Read(buffer, sizeof buffer);
    if (!read.ok()) return WhyLost(*caller, read.status());
    caller->peer.reader->Feed({buffer, *read});
    if (*read == 0) RIVULET_RETURN_IF_ERROR(wait());
  }
}

// With TLS 1.3 a client is connected before the server looks at its certificate. If we have sent
// something by then, a server that refuses the certificate resets the connection, and its reason is
// lost. A second connection, on which nothing is sent, gets to read it.
absl::Status RedisDialer::WhyLost(const Caller& caller, const absl::Status& status) {
  if (caller.answered || !absl::IsUnavailable(status)) return status;
  if (tls_ == nullptr) {
    return absl::UnavailableError(
        absl::StrCat(status.message(), "; does it expect TLS (rediss://)?"));
  }
  const RedisTime deadline = After(options_.connect_timeout);
  const absl::StatusOr<std::unique_ptr<RedisStream>> stream = ConnectTo(caller.place);
  if (!stream.ok()) return status;
  char byte = 0;
  absl::StatusOr<size_t> read = (*stream)->Read(&byte, 1);
  while (read.ok() && wait_((*stream)->fd(), (*stream)->events(), deadline).ok()) {
    read = (*stream)->Read(&byte, 1);
  }
  return absl::IsFailedPrecondition(read.status()) ? read.status() : status;
}

}  // namespace rivulet
