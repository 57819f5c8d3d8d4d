// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/connections/acceptor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/log.h"

namespace rivulet {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kLong = absl::Seconds(20);

// Returns whether `condition` holds within kLong.
template <typename Condition>
bool Eventually(const Condition& condition) {
  const absl::Time end = absl::Now() + kLong;
  while (!condition()) {
    if (absl::Now() > end) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

// A TCP client of the loopback.
class Client {
 public:
  Client() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval limit{20, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }
  Client(int port, const char* from = "127.0.0.1") : Client() { Connect(port, from); }
  ~Client() { Close(); }
  Client(const Client&) = delete;

  void Connect(int port, const char* from = "127.0.0.1") const {
    const sockaddr_in here = Address(from, 0), there = Address("127.0.0.1", port);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&here), sizeof(here)), 0);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&there), sizeof(there)), 0)
        << std::strerror(errno);
  }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  // Closes with a reset, not with the usual end of the connection.
  void Reset() {
    const linger none{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
    Close();
  }
  void HalfClose() const { shutdown(fd_, SHUT_WR); }
  // Waits until the other side has ended the connection; false if it sent something or time is up.
  bool Ended() const {
    char byte = 0;
    const ssize_t got = recv(fd_, &byte, 1, 0);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  }
  bool Open() const {
    char byte = 0;
    return recv(fd_, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
  }
  void Read(size_t bytes) const {
    std::string buffer(1 << 16, '\0');
    while (bytes > 0) {
      const ssize_t got = recv(fd_, buffer.data(), std::min(bytes, buffer.size()), 0);
      ASSERT_GT(got, 0);
      bytes -= static_cast<size_t>(got);
    }
  }
  void Send(absl::string_view bytes) const {
    EXPECT_EQ(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL), ssize_t(bytes.size()))
        << std::strerror(errno);
  }
  // All that comes until the other side has ended the connection.
  std::string Rest() const {
    std::string rest, buffer(1 << 16, '\0');
    ssize_t got = 0;
    while ((got = recv(fd_, buffer.data(), buffer.size(), 0)) > 0)
      rest.append(buffer, 0, size_t(got));
    EXPECT_EQ(got, 0) << std::strerror(errno);
    return rest;
  }
  std::string Name() const {
    sockaddr_storage name{};
    socklen_t length = sizeof(name);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&name), &length);
    return PeerName(name);
  }

 private:
  static sockaddr_in Address(const char* host, int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, host, &address.sin_addr);
    return address;
  }

  int fd_;
};

class AcceptorTest : public ::testing::Test {
 protected:
  ~AcceptorTest() override {
    acceptor_.reset();
    while (CloseOne()) {
    }
  }

  void Listen(const std::string& host = "127.0.0.1", bool tls = false) {
    auto sockets = ListenOn({host, 0}, absl::Seconds(10));
    ASSERT_TRUE(sockets.ok()) << sockets.status();
    auto acceptor = Acceptor::Create(*std::move(sockets), &connections_, tls);
    ASSERT_TRUE(acceptor.ok()) << acceptor.status();
    acceptor_ = *std::move(acceptor);
    const auto take = [this](int fd) {
      absl::MutexLock lock(&mutex_);
      taken_.push_back(fd);
    };
    acceptor_->Start(take, take);
  }
  size_t Taken() {
    absl::MutexLock lock(&mutex_);
    return taken_.size();
  }
  bool AwaitTaken(size_t count) {
    return Eventually([&] { return Taken() == count; });
  }
  bool AwaitOpen(int count) {
    return Eventually([&] { return connections_.counts().open == count; });
  }
  // Ends the first connection that is left as gRPC does.
  bool CloseOne() {
    absl::MutexLock lock(&mutex_);
    if (taken_.empty()) return false;
    shutdown(taken_.front(), SHUT_RDWR);
    close(taken_.front());
    taken_.erase(taken_.begin());
    return true;
  }
  int First() {
    absl::MutexLock lock(&mutex_);
    return taken_.front();
  }
  int port() const { return acceptor_->port(); }

  Connections connections_;
  std::unique_ptr<Acceptor> acceptor_;
  absl::Mutex mutex_;
  std::vector<int> taken_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(AcceptorTest, HandsSocketsOverAndSeesEachEnd) {
  Listen();
  Client first(port()), second(port()), third(port());
  ASSERT_TRUE(AwaitTaken(3));
  EXPECT_TRUE(AwaitOpen(3));
  int nodelay = 0;
  unsigned timeout_ms = 0;
  socklen_t length = sizeof(nodelay);
  getsockopt(First(), IPPROTO_TCP, TCP_NODELAY, &nodelay, &length);
  getsockopt(First(), IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, &length);
  EXPECT_NE(nodelay, 0);
  EXPECT_EQ(timeout_ms, 10000u);
  EXPECT_NE(fcntl(First(), F_GETFL) & O_NONBLOCK, 0);

  first.HalfClose();  // what arrived may still be answered
  second.Reset();
  EXPECT_TRUE(AwaitOpen(2));
  CloseOne();
  EXPECT_TRUE(AwaitOpen(1));
  EXPECT_TRUE(first.Ended());
  EXPECT_TRUE(third.Open());
  const ConnectionCounts counts = connections_.counts();
  EXPECT_EQ(counts.accepted, 3);
  EXPECT_EQ(counts.refused, 0);
  EXPECT_EQ(counts.max_open, 0);
}

TEST_F(AcceptorTest, OneBeyondTheLimitIsClosedAtOnce) {
  connections_.SetLimits({2, 0});
  Listen();
  Client first(port()), second(port()), third(port());
  EXPECT_TRUE(third.Ended());
  EXPECT_TRUE(connections_.full());
  EXPECT_EQ(connections_.counts().refused, 1);
  EXPECT_TRUE(first.Open() && second.Open());
  ASSERT_TRUE(AwaitTaken(2));
  CloseOne();
  ASSERT_TRUE(AwaitOpen(1));
  const Client fourth(port());
  EXPECT_TRUE(AwaitTaken(2));
  EXPECT_TRUE(fourth.Open());
  EXPECT_EQ(connections_.counts().accepted, 3);
}

TEST_F(AcceptorTest, AnAddressHasALimitOfItsOwn) {
  connections_.SetLimits({3, 1});
  Listen();
  Client first(port(), "127.0.0.1"), again(port(), "127.0.0.1"), other(port(), "127.0.0.2");
  EXPECT_TRUE(again.Ended());
  EXPECT_TRUE(AwaitOpen(2));
  EXPECT_TRUE(first.Open() && other.Open());
  EXPECT_FALSE(connections_.full());
}

TEST_F(AcceptorTest, AConnectionIsClosedByTheNameOfItsPeer) {
  Listen();
  Client first(port()), second(port());
  ASSERT_TRUE(AwaitTaken(2) && AwaitOpen(2));
  EXPECT_FALSE(connections_.CloseConnection("ipv4:127.0.0.1:1"));
  EXPECT_FALSE(connections_.CloseConnection(""));
  EXPECT_TRUE(connections_.CloseConnection(second.Name()));
  connections_.CloseConnection(second.Name());
  EXPECT_TRUE(second.Ended());
  EXPECT_TRUE(AwaitOpen(1));
  EXPECT_TRUE(first.Open());
  EXPECT_EQ(connections_.counts().closed, 1) << "each is counted once";
}

TEST_F(AcceptorTest, WhoIsCutOffIsClosedAndItsAddressRefusedForAWhile) {
  Listen();
  Client attacker(port(), "127.0.0.2"), other(port());
  ASSERT_TRUE(AwaitTaken(2) && AwaitOpen(2));
  const std::string name = attacker.Name();
  EXPECT_TRUE(connections_.CutOff(name));
  EXPECT_FALSE(connections_.CutOff(name)) << "it was closed before";
  EXPECT_TRUE(attacker.Ended());
  EXPECT_EQ(connections_.counts().closed, 1);
  const auto refused = [this](const char* host) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, host, &address.sin_addr);
    sockaddr_storage storage{};
    std::memcpy(&storage, &address, sizeof(address));
    return !connections_.Refusal(storage).empty();
  };
  EXPECT_TRUE(Eventually([&] {
    connections_.CutOff(name);
    return refused("127.0.0.2");
  }));
  EXPECT_FALSE(refused("127.0.0.1"));
  EXPECT_TRUE(other.Open());
  EXPECT_TRUE(Eventually([&] { return !refused("127.0.0.2"); }));
}

TEST_F(AcceptorTest, WhatAClientHasNotReceivedIsWaitedFor) {
  Listen();
  const Client idle(port());
  const Client slow(port());
  ASSERT_TRUE(AwaitTaken(2));
  ASSERT_TRUE(AwaitOpen(2));
  EXPECT_TRUE(connections_.AwaitDelivered(absl::Now()));
  const std::string bytes(1 << 20, 'x');
  size_t sent = 0;
  for (ssize_t more = 1; more > 0;) {  // until the kernel of both sides takes no more
    more = send(taken_.back(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (more > 0) sent += static_cast<size_t>(more);
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_FALSE(connections_.AwaitDelivered(absl::Now() + absl::Milliseconds(20)));
  std::thread reader([&] { slow.Read(sent); });
  EXPECT_TRUE(connections_.AwaitDelivered(absl::Now() + absl::Seconds(20)));
  reader.join();
}

TEST_F(AcceptorTest, ItsOwnConnectionPassesALimitThatIsReached) {
  connections_.SetLimits({1, 0});
  for (const char* host : {"127.0.0.1", "0.0.0.0", "localhost"}) {
    Listen(host);
    Client client(port());
    ASSERT_TRUE(AwaitOpen(1));
    const int64_t refused = connections_.counts().refused;
    for (size_t i = 2; i < 5; ++i) {
      const auto self = acceptor_->ConnectToSelf(kLong);
      ASSERT_TRUE(self.ok()) << host << ": " << self.status();
      EXPECT_TRUE(AwaitTaken(i)) << host;
      close(*self);
    }
    EXPECT_EQ(connections_.counts().open, 1);
    EXPECT_EQ(connections_.counts().refused, refused);
    const Client other(port());
    EXPECT_TRUE(other.Ended());
    while (CloseOne()) {
    }
    ASSERT_TRUE(AwaitOpen(0));
    acceptor_.reset();
  }
}

TEST_F(AcceptorTest, WhatNoLongerListensCannotBeConnectedTo) {
  auto sockets = ListenOn({"127.0.0.1", 0}, absl::Seconds(10));
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  const int listening = sockets->sockets[0].fd;
  acceptor_ = *Acceptor::Create(*std::move(sockets), &connections_, false);
  acceptor_->Start([](int fd) { close(fd); }, [](int fd) { close(fd); });
  ASSERT_TRUE(acceptor_->ConnectToSelf(kLong).ok());
  shutdown(listening, SHUT_RDWR);
  EXPECT_TRUE(Eventually([&] {
    return acceptor_->ConnectToSelf(absl::Milliseconds(100)).status().code() ==
           absl::StatusCode::kUnavailable;
  }));
}

TEST_F(AcceptorTest, WithoutDescriptorsClientsAreRefusedAndServedAgainLater) {
  Listen();
  Client first, second, third;
  std::vector<int> all;
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit few = before;
  few.rlim_cur = 256;
  setrlimit(RLIMIT_NOFILE, &few);
  for (int fd = dup(0); fd >= 0; fd = dup(0)) all.push_back(fd);
  first.Connect(port());
  second.Connect(port());
  EXPECT_TRUE(first.Ended());
  EXPECT_TRUE(second.Ended());
  EXPECT_EQ(connections_.counts().refused, 2);
  const auto self = acceptor_->ConnectToSelf(kLong);
  EXPECT_TRUE(self.ok()) << self.status();
  EXPECT_TRUE(AwaitTaken(1)) << "descriptors are kept back for it";
  if (self.ok()) close(*self);

  for (const int fd : all) close(fd);
  third.Connect(port());
  EXPECT_TRUE(AwaitTaken(2));
  EXPECT_TRUE(third.Open());
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST_F(AcceptorTest, WhatIsStoppedAcceptsNothingAndItsConnectionsGoOn) {
  Listen();
  const Client client(port());
  ASSERT_TRUE(AwaitTaken(1));
  acceptor_->Stop();
  auto again = ListenOn({"127.0.0.1", port()}, absl::Seconds(10));
  EXPECT_TRUE(again.ok()) << again.status();
  if (again.ok()) close(again->sockets[0].fd);
  EXPECT_TRUE(client.Open());
}

TEST_F(AcceptorTest, HttpIsToldWhatThePortSpeaks) {
  for (const bool tls : {false, true}) {
    ::testing::internal::CaptureStderr();
    SetLogMode(LogMode::kOn);
    Listen("127.0.0.1", tls);
    Client get(port()), half_closed(port()), post(port());
    get.Send("GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n");
    half_closed.Send("OPTIONS * HTTP/1.0\r\n\r\n");
    half_closed.HalfClose();
    post.Send("POST /v1/completions HTTP/1.1\r\nContent-Length: 8388608\r\n\r\n");
    post.Send(std::string(8 << 20, 'x'));  // more than the kernel of both sides takes unread
    for (Client* client : {&get, &half_closed, &post}) {
      const std::string answer = client->Rest();
      const std::string body = answer.substr(answer.find("\r\n\r\n") + 4);
      EXPECT_THAT(answer,
                  StartsWith("HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n"));
      EXPECT_THAT(answer, HasSubstr(absl::StrCat("\r\nContent-Length: ", body.size(), "\r\n")));
      EXPECT_THAT(answer, HasSubstr("\r\nConnection: close\r\n"));
      EXPECT_THAT(body, HasSubstr(tls ? "\"This port speaks gRPC over TLS, not HTTP/1.1; "
                                      : "\"This port speaks gRPC, not HTTP/1.1; "));
      EXPECT_THAT(body, HasSubstr("`rivulet serve`"));
      client->Close();
    }
    EXPECT_TRUE(AwaitOpen(0));
    EXPECT_EQ(Taken(), 0u);
    acceptor_.reset();
    SetLogMode(LogMode::kOff);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                HasSubstr(absl::StrCat("\"event\":\"", tls ? "tls_failed" : "not_grpc",
                                       "\",\"peer\":\"ipv4:127.0.0.1:")));
  }
}

TEST_F(AcceptorTest, WhoKeepsAnAnsweredConnectionOpenLosesIt) {
  Listen();
  const Client client(port());
  client.Send("GET / HTTP/1.1\r\n\r\n");
  EXPECT_THAT(client.Rest(), HasSubstr("gRPC"));
  EXPECT_TRUE(AwaitOpen(0));
}

TEST_F(AcceptorTest, OtherFirstBytesAreLeftToGrpc) {
  Listen();
  for (const std::string bytes : {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "PR", "\x16\x03\x01", "get /",
                                  "GETTING", "A B", "\r\n"}) {
    const Client client(port());
    client.Send(bytes);
    ASSERT_TRUE(AwaitTaken(1)) << bytes;
    char got[64];
    EXPECT_EQ(std::string(got, size_t(recv(First(), got, sizeof(got), 0))), bytes);
    CloseOne();
    EXPECT_TRUE(client.Ended());
  }
}

TEST_F(AcceptorTest, WhoEndsWithoutAByteIsForgotten) {
  Listen();
  Client closed(port()), reset(port()), half_closed(port());
  ASSERT_TRUE(AwaitOpen(3));
  closed.Close();
  reset.Reset();
  half_closed.HalfClose();
  EXPECT_TRUE(AwaitOpen(0));
  EXPECT_TRUE(half_closed.Ended());
  EXPECT_EQ(Taken(), 0u);
}

TEST_F(AcceptorTest, AConnectionThatGrpcStillHasDoesNotEndTheNextOne) {
  Listen();
  Client next;
  const int hole = dup(0);  // the lowest free number; `next` gets it and the one freed below
  Client before(port());
  before.Send("PR");
  ASSERT_TRUE(AwaitTaken(1) && AwaitOpen(1));
  shutdown(First(), SHUT_RDWR);
  ASSERT_TRUE(AwaitOpen(0));
  close(hole);
  next.Connect(port());
  ASSERT_TRUE(AwaitOpen(1));
  before.Close();
  next.Send("PR");
  EXPECT_TRUE(AwaitTaken(2));
  EXPECT_TRUE(next.Open());
}

TEST_F(AcceptorTest, WhatIsStoppedEndsConnectionsThatGrpcDoesNotHave) {
  Listen();
  const Client client(port());
  ASSERT_TRUE(AwaitOpen(1));
  acceptor_->Stop();
  EXPECT_TRUE(Taken() == 1 || client.Ended());
  EXPECT_EQ(connections_.counts().open, static_cast<int>(Taken()));
}

TEST_F(AcceptorTest, WhatCannotBeWatchedIsLogged) {
  ::testing::internal::CaptureStderr();
  SetLogMode(LogMode::kOn);
  ListeningSockets sockets;
  sockets.sockets.push_back({open("/dev/null", O_RDONLY | O_CLOEXEC), {}});  // epoll takes no file
  auto acceptor = Acceptor::Create(std::move(sockets), &connections_, false);
  ASSERT_TRUE(acceptor.ok()) << acceptor.status();
  (*acceptor)->Start([](int) {}, [](int) {});
  acceptor->reset();
  SetLogMode(LogMode::kOff);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::HasSubstr("\"event\":\"accept_failed\",\"reason\":\"epoll_ctl: "));
}

TEST(ListenOnTest, APortIsOneServersAlone) {
  for (const char* host : {"127.0.0.1", "0.0.0.0", "::", "localhost"}) {
    auto one = ListenOn({host, 0}, absl::Seconds(10));
    ASSERT_TRUE(one.ok()) << host << ": " << one.status();
    EXPECT_GT(one->port, 0);
    const auto other = ListenOn({host, one->port}, absl::Seconds(10));
    EXPECT_EQ(other.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(other.status().message()), HasSubstr("Address already in use"));
    for (const ListeningSocket& socket : one->sockets) close(socket.fd);
  }
  EXPECT_THAT(std::string(ListenOn({"192.0.2.1", 1}, absl::Seconds(1)).status().message()),
              HasSubstr("Cannot assign"));
  EXPECT_FALSE(ListenOn({"no.such.host.invalid", 1}, absl::Seconds(1)).ok());
}

TEST(PeerNameTest, IsThatOfGrpc) {
  sockaddr_storage storage{};
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(56);
  const auto name = [&](const char* address, uint32_t scope) {
    inet_pton(AF_INET6, address, &v6.sin6_addr);
    v6.sin6_scope_id = scope;
    std::memcpy(&storage, &v6, sizeof(v6));
    return PeerName(storage);
  };
  EXPECT_EQ(name("::1", 0), "ipv6:[::1]:56");
  EXPECT_EQ(name("fe80::1", 2), "ipv6:[fe80::1%2]:56");
  EXPECT_EQ(name("::ffff:1.2.3.4", 0), "ipv4:1.2.3.4:56");
}

}  // namespace
}  // namespace rivulet
