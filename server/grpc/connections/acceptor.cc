// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/connections/acceptor.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "model/base/error.h"
#include "model/base/thread.h"
#include "server/grpc/connections/first_bytes.h"
#include "server/log.h"

namespace rivulet {
namespace {

constexpr int kSpareDescriptors = 4;
constexpr int kAcceptsATurn = 64;  // then ends of connections are checked again
// How long nothing is accepted after a failure because of memory or descriptors.
constexpr absl::Duration kPause = absl::Milliseconds(100);
// How long a client may be silent before gRPC gets its connection, and may keep a connection open
// on which HTTP/1.1 was answered. Clients of gRPC and HTTP send something at once.
constexpr absl::Duration kWait = absl::Seconds(1);
constexpr absl::Duration kWaitingLooks = absl::Milliseconds(100);

bool NoDescriptor(int error) { return error == EMFILE || error == ENFILE; }

// Errors of a single connection that ended before it was accepted; see accept(2).
bool ConcernsOne(int error) {
  constexpr int kErrors[] = {EINTR,        ECONNABORTED, EPROTO, ENETDOWN,
                             ENOPROTOOPT,  EHOSTDOWN,    ENONET, EOPNOTSUPP,
                             EHOSTUNREACH, ENETUNREACH,  EPERM};
  return std::find(std::begin(kErrors), std::end(kErrors), error) != std::end(kErrors);
}

struct Endpoint {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

template <typename Address>
Endpoint ToEndpoint(const Address& address) {
  Endpoint endpoint;
  std::memcpy(&endpoint.storage, &address, sizeof(address));
  endpoint.length = sizeof(address);
  return endpoint;
}

// Where to connect for a listener on `address`; 127.0.0.1 for every address of the machine.
Endpoint ReachableAt(const sockaddr_storage& address, int port) {
  if (address.ss_family == AF_INET6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, &address, sizeof(v6));
    if (!IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr)) return ToEndpoint(v6);
  }
  sockaddr_in v4{};
  if (address.ss_family == AF_INET) std::memcpy(&v4, &address, sizeof(v4));
  v4.sin_family = AF_INET;
  v4.sin_port = htons(static_cast<uint16_t>(port));
  if (v4.sin_addr.s_addr == htonl(INADDR_ANY)) v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ToEndpoint(v4);
}

Endpoint WithoutPort(Endpoint endpoint) {
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  std::memset(reinterpret_cast<char*>(&endpoint.storage) + offsetof(sockaddr_in, sin_port), 0,
              sizeof(in_port_t));
  return endpoint;
}

const sockaddr* Name(const Endpoint& endpoint) {
  return reinterpret_cast<const sockaddr*>(&endpoint.storage);
}

// Waits until `fd` is connected; errno's value, 0 for success.
int AwaitConnected(int fd, absl::Duration timeout) {
  pollfd entry{fd, POLLOUT, 0};
  if (poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

absl::Status SystemError(const char* what, int error) {
  const std::string message = absl::StrCat(what, ": ", std::strerror(error));
  const bool exhausted = NoDescriptor(error) || error == ENOBUFS || error == ENOMEM ||
                         error == EADDRINUSE || error == EADDRNOTAVAIL || error == EAGAIN;
  return exhausted ? absl::ResourceExhaustedError(message) : absl::UnavailableError(message);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Create(ListeningSockets listening,
                                                           Connections* connections, bool tls) {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  const int stop = eventfd(0, EFD_CLOEXEC);
  const int error = errno;
  std::unique_ptr<Acceptor> acceptor(
      new Acceptor(std::move(listening), connections, tls, epoll, stop));
  if (epoll < 0 || stop < 0) return SystemError("epoll_create1, eventfd", error);
  RIVULET_RETURN_IF_ERROR(acceptor->Watch(stop, EPOLLIN));
  return acceptor;
}

Acceptor::Acceptor(ListeningSockets listening, Connections* connections, bool tls, int epoll,
                   int stop)
    : listening_(std::move(listening)),
      connections_(connections),
      tls_(tls),
      epoll_(epoll),
      stop_(stop),
      spare_(kSpareDescriptors) {}

Acceptor::~Acceptor() {
  Stop();
  close(stop_);
  close(epoll_);
}

void Acceptor::Start(Take take, Take take_self) {
  take_ = std::move(take);
  take_self_ = std::move(take_self);
  Resume();
  thread_ = std::thread([this] { Run(); });
}

void Acceptor::Stop() {
  if (std::exchange(stopped_, true)) return;
  if (thread_.joinable()) {
    eventfd_write(stop_, 1);
    thread_.join();
  }
  for (const ListeningSocket& socket : listening_.sockets) close(socket.fd);
  while (!waiting_.empty()) End(waiting_.begin()->first);
}

absl::Status Acceptor::Watch(int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return SystemError("epoll_ctl", errno);
}

void Acceptor::Run() {
  NameThread("acceptor");
  std::vector<epoll_event> events(256);
  const auto pause_ms = static_cast<int>(absl::ToInt64Milliseconds(kPause));
  while (true) {
    const bool timed = paused_ || !waiting_.empty();
    const int count =
        epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), timed ? pause_ms : -1);
    if (count <= 0 && paused_) Resume();
    // Ends of connections come first: they make room.
    std::vector<int> readable;
    for (size_t i = 0; i < static_cast<size_t>(std::max(count, 0)); ++i) {
      const int fd = events[i].data.fd;
      if (fd == stop_) return;
      const auto is_it = [fd](const ListeningSocket& socket) { return socket.fd == fd; };
      if (std::any_of(listening_.sockets.begin(), listening_.sockets.end(), is_it)) {
        readable.push_back(fd);
      } else if (waiting_.contains(fd)) {
        TakeFirstBytes(fd, (events[i].events & EPOLLHUP) != 0);
      } else if ((events[i].events & EPOLLHUP) != 0) {
        Forget(fd);
      }
    }
    EndWaiting(absl::Now());
    for (const int fd : readable) {
      if (!paused_) AcceptFrom(fd);
    }
    spare_.Refill();
  }
}

void Acceptor::AcceptFrom(int listening) {
  for (int i = 0; i < kAcceptsATurn; ++i) {
    sockaddr_storage peer{};
    const auto accept_one = [&] {
      socklen_t length = sizeof(peer);
      return accept4(listening, reinterpret_cast<sockaddr*>(&peer), &length,
                     SOCK_NONBLOCK | SOCK_CLOEXEC);
    };
    int fd = accept_one();
    const bool short_of_descriptors = fd < 0 && NoDescriptor(errno);
    if (short_of_descriptors) {
      if (!spare_.Release()) return Pause("no descriptor is left");
      fd = accept_one();
    }
    if (fd < 0 && errno == EAGAIN) return;
    if (fd < 0 && ConcernsOne(errno)) continue;
    if (fd < 0) return Pause(std::strerror(errno));
    if (IsSelf(peer)) {
      take_self_(fd);
    } else if (short_of_descriptors) {
      connections_->CountRefused();
      Refuse(fd, "no descriptor is left");
    } else {
      Admit(fd, peer);
    }
    if (short_of_descriptors) spare_.Refill();
  }
}

void Acceptor::Admit(int fd, const sockaddr_storage& peer) {
  const absl::string_view refusal = connections_->Refusal(peer);
  if (!refusal.empty()) return Refuse(fd, refusal);
  const int second = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (second < 0) {
    connections_->CountRefused();
    return Refuse(fd, "no descriptor is left");
  }
  connections_->Add(second, peer);
  if (const absl::Status watched = Watch(second, EPOLLIN | EPOLLET); !watched.ok()) {
    Forget(second);  // its place would never become free again
    connections_->CountRefused();
    return Refuse(fd, watched.message());
  }
  waiting_.emplace(second, Waiting{fd, PeerName(peer), absl::Now() + kWait});
}

void Acceptor::TakeFirstBytes(int second, bool ended) {
  if (ended) return End(second);
  Waiting& waiting = waiting_.at(second);
  if (waiting.fd < 0) return DiscardReceived(second);
  const FirstBytes first = PeekFirstBytes(waiting.fd);
  if (first == FirstBytes::kNone) return;
  if (first == FirstBytes::kEnd) return End(second);
  if (first == FirstBytes::kOther) return HandOver(second);
  AnswerHttp1(waiting.fd, tls_);
  // `second` stays open until the client has ended its side, and the rest of the request is read:
  // otherwise the kernel would reset the connection, and the client might lose the answer.
  close(std::exchange(waiting.fd, -1));
  waiting.until = absl::Now() + kWait;
  LogLimited(LogLevel::kWarning, tls_ ? "tls_failed" : "not_grpc",
             {{"peer", waiting.peer}, {"reason", std::string("the client speaks HTTP/1.1")}});
}

void Acceptor::HandOver(int second) {
  // Watches only for the end from now on: gRPC shuts a socket down before it closes it, and then
  // both descriptors see the end. Edge-triggered, because other errors would be reported
  // repeatedly.
  epoll_event event{};
  event.events = EPOLLET;
  event.data.fd = second;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, second, &event);
  take_(waiting_.extract(second).mapped().fd);
}

void Acceptor::End(int second) {
  const int fd = waiting_.extract(second).mapped().fd;
  if (fd >= 0) close(fd);
  Forget(second);
}

void Acceptor::Forget(int second) {
  // Closing `second` does not end its watch while gRPC has the socket open: the events of this
  // socket would come under the number of `second`, which the next connection may have by then.
  epoll_ctl(epoll_, EPOLL_CTL_DEL, second, nullptr);
  connections_->Remove(second);
}

void Acceptor::EndWaiting(absl::Time now) {
  if (now < next_look_) return;
  next_look_ = now + kWaitingLooks;
  std::vector<std::pair<absl::Time, int>> over;
  for (const auto& [second, waiting] : waiting_) {
    if (waiting.until <= now) over.emplace_back(waiting.until, second);
  }
  std::sort(over.begin(), over.end());  // gRPC gets them in the order in which they came
  for (const auto& [until, second] : over) {
    if (waiting_.at(second).fd < 0) {
      End(second);
    } else {
      HandOver(second);
    }
  }
}

bool Acceptor::IsSelf(const sockaddr_storage& peer) {
  MutexLock lock(&mutex_);
  if (self_.empty() || self_ != PeerName(peer)) return false;
  self_.clear();
  return true;
}

void Acceptor::Refuse(int fd, absl::string_view reason) {
  close(fd);
  const ConnectionCounts counts = connections_->counts();
  LogLimited(LogLevel::kWarning, "connections_refused",
             {{"reason", std::string(reason)},
              {"open", int64_t{counts.open}},
              {"refused_total", counts.refused}});
}

void Acceptor::Pause(absl::string_view why) {
  // A watched socket from which nothing is accepted would keep this thread running.
  for (const ListeningSocket& socket : listening_.sockets) {
    epoll_ctl(epoll_, EPOLL_CTL_DEL, socket.fd, nullptr);
  }
  paused_ = true;
  LogLimited(LogLevel::kWarning, "accept_failed", {{"reason", std::string(why)}});
}

void Acceptor::Resume() {
  for (const ListeningSocket& socket : listening_.sockets) {
    const absl::Status watched = Watch(socket.fd, EPOLLIN);
    if (!watched.ok()) return Pause(watched.message());
  }
  paused_ = false;
}

absl::StatusOr<int> Acceptor::ConnectToSelf(absl::Duration timeout) {
  const ListeningSocket& target = listening_.sockets[next_self_++ % listening_.sockets.size()];
  const Endpoint there = ReachableAt(target.address, listening_.port);
  const auto make_socket = [&there] {
    return socket(there.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  };
  int fd = make_socket();
  if (fd < 0 && NoDescriptor(errno) && spare_.Release()) fd = make_socket();
  if (fd < 0) return SystemError("socket", errno);
  absl::Cleanup close_it = [fd] { close(fd); };
  // Bound before it is connected, so that the acceptor can be told which peer to expect.
  const Endpoint here = WithoutPort(there);
  if (bind(fd, Name(here), here.length) != 0) return SystemError("bind", errno);
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length);
  {
    MutexLock lock(&mutex_);
    self_ = PeerName(bound);
  }
  int error = connect(fd, Name(there), there.length) == 0 ? 0 : errno;
  if (error == EINPROGRESS) error = AwaitConnected(fd, timeout);
  if (error != 0) return SystemError("connect", error);
  std::move(close_it).Cancel();
  return fd;
}

}  // namespace rivulet
