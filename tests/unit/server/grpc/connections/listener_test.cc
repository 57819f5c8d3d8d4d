// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/connections/listener.h"

#include <arpa/inet.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/support/raw_rpc.h"

namespace rivulet {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

// Frames of HTTP/2 on a socket: what a client sends that does not answer, or answers only pings.
class RawClient {
 public:
  explicit RawClient(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in there{};
    there.sin_family = AF_INET;
    there.sin_port = htons(static_cast<uint16_t>(port));
    there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&there), sizeof(there)), 0);
  }
  ~RawClient() { Close(); }
  RawClient(const RawClient&) = delete;

  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  // Preface, SETTINGS, and the acknowledgement of the server's.
  void Begin() {
    Send(
        absl::string_view("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
                          "\0\0\0\4\0\0\0\0\0"
                          "\0\0\0\4\1\0\0\0\0",
                          24 + 9 + 9));
  }

  // Reads until `deadline` or the end, acknowledging pings where told to. Returns whether the
  // server has ended the connection.
  bool EndsBy(absl::Time deadline, bool answer) {
    while (absl::Now() < deadline) {
      pollfd entry{fd_, POLLIN, 0};
      if (poll(&entry, 1, 10) <= 0) continue;
      char bytes[4096];
      const ssize_t got = recv(fd_, bytes, sizeof(bytes), 0);
      if (got <= 0) return true;
      received_.append(bytes, static_cast<size_t>(got));
      while (ReadFrame(answer)) {
      }
    }
    return false;
  }

  int pings() const { return pings_; }

  // Waits until the server has acknowledged the SETTINGS: it has nothing more to write.
  void AwaitSettings() {
    const absl::Time deadline = absl::Now() + kPatience;
    while (!acknowledged_ && absl::Now() < deadline) {
      ASSERT_FALSE(EndsBy(absl::Now() + absl::Milliseconds(10), true));
    }
    ASSERT_TRUE(acknowledged_);
  }
  // Waits until the server has ended its side.
  void AwaitServersEnd() {
    pollfd entry{fd_, POLLRDHUP, 0};
    ASSERT_EQ(poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))), 1);
  }
  // Whether the connection takes a window update; it does not once a reset has come.
  bool SendsWindowUpdate() {
    const absl::string_view frame("\0\0\4\x08\0\0\0\0\0\0\0\0\1", 13);
    return send(fd_, frame.data(), frame.size(), MSG_NOSIGNAL) == 13;
  }

 private:
  // Takes a whole frame out of what was received.
  bool ReadFrame(bool answer) {
    constexpr size_t kHeader = 9;
    constexpr char kSettings = 4;
    constexpr char kPing = 6;
    if (received_.size() < kHeader) return false;
    const auto byte = [this](size_t i) { return static_cast<unsigned char>(received_[i]); };
    const size_t length = (size_t{byte(0)} << 16) | (size_t{byte(1)} << 8) | byte(2);
    if (received_.size() < kHeader + length) return false;
    std::string frame = received_.substr(0, kHeader + length);
    received_.erase(0, kHeader + length);
    acknowledged_ |= frame[3] == kSettings && frame[4] == 1;
    if (frame[3] == kPing && frame[4] == 0) {
      ++pings_;
      frame[4] = 1;
      if (answer) Send(frame);
    }
    return true;
  }
  void Send(absl::string_view bytes) { (void)!send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }

  int fd_;
  std::string received_;
  bool acknowledged_ = false;  // by the server: the SETTINGS that Begin sent
  int pings_ = 0;
};

class ListenerTest : public ::testing::Test {
 protected:
  ListenerTest() {
    options_.address = "127.0.0.1:0";
    options_.setting = "listen";
    options_.max_message_bytes = 1 << 20;
    options_.max_streams = 10;
  }
  ~ListenerTest() override {
    if (listener_ != nullptr) listener_->Shutdown(absl::InfinitePast());
  }

  void Start() {
    grpc::ServerBuilder builder;
    SetUpListener(options_, &builder);
    auto listener = Listener::Start(options_, &builder, &connections_);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }
  int port() const { return listener_->port(); }

  ListenerOptions options_;
  Connections connections_;
  std::unique_ptr<Listener> listener_;
};

TEST_F(ListenerTest, AClientThatVanishedWithoutACallIsFoundByPings) {
  options_.keepalive_time = absl::Milliseconds(300);
  options_.keepalive_timeout = absl::Milliseconds(700);
  Start();
  RawClient living(port()), vanished(port());
  living.Begin();
  vanished.Begin();
  // Longer than what gRPC of itself sends without data in between: two pings.
  bool living_ended = false;
  std::thread live([&] { living_ended = living.EndsBy(absl::Now() + absl::Seconds(3), true); });
  EXPECT_TRUE(vanished.EndsBy(absl::Now() + kPatience, false));
  EXPECT_GE(vanished.pings(), 1);
  live.join();
  EXPECT_FALSE(living_ended);
  EXPECT_GE(living.pings(), 3);
  while (connections_.counts().open != 1) absl::SleepFor(absl::Milliseconds(1));
}

TEST_F(ListenerTest, OneThatNeverBeginsHttp2IsClosed) {
  options_.handshake_timeout = absl::Milliseconds(200);
  Start();
  RawClient silent(port());
  EXPECT_TRUE(silent.EndsBy(absl::Now() + kPatience, true));
  while (connections_.counts().open != 0) absl::SleepFor(absl::Milliseconds(1));
}

// Answers every call with OK, and knows who made the last one.
class PeerService final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    struct Reactor final : grpc::ServerGenericBidiReactor {
      Reactor() { Finish(grpc::Status::OK); }
      void OnDone() override { delete this; }
    };
    absl::MutexLock lock(&mutex_);
    peer_ = context->peer();
    return new Reactor;
  }
  std::string peer() {
    absl::MutexLock lock(&mutex_);
    return peer_;
  }

 private:
  absl::Mutex mutex_;
  std::string peer_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(ListenerTest, AConnectionIsClosedByThePeerThatACallNames) {
  for (const std::string host : {"127.0.0.1", "[::1]"}) {
    options_.address = host + ":0";
    PeerService service;
    grpc::ServerBuilder builder;
    SetUpListener(options_, &builder);
    builder.RegisterCallbackGenericService(&service);
    auto listener = Listener::Start(options_, &builder, &connections_);
    if (host != "127.0.0.1" && absl::IsUnavailable(listener.status())) continue;  // no IPv6
    ASSERT_TRUE(listener.ok()) << listener.status();
    const auto channel = grpc::CreateChannel(host + ":" + std::to_string((*listener)->port()),
                                             grpc::InsecureChannelCredentials());
    std::string none;
    testing::RawCall(channel, "/any.Service/Method", "", &none);
    EXPECT_NE(service.peer(), "");
    EXPECT_EQ(connections_.counts().open, 1);
    EXPECT_TRUE(connections_.CloseConnection(service.peer())) << service.peer();
    while (connections_.counts().open != 0) absl::SleepFor(absl::Milliseconds(1));
    (*listener)->Shutdown(absl::InfinitePast());
  }
}

TEST_F(ListenerTest, AShutdownSendsGoawayAndFreesThePort) {
  Start();
  const int before = port();
  RawClient client(before);
  client.Begin();
  while (connections_.counts().open != 1) absl::SleepFor(absl::Milliseconds(1));
  listener_->Shutdown(absl::Now() + absl::Milliseconds(100));
  EXPECT_TRUE(client.EndsBy(absl::Now() + kPatience, true));
  auto again = ListenOn({"127.0.0.1", before}, absl::Seconds(10));
  EXPECT_TRUE(again.ok()) << again.status();
  if (again.ok()) close(again->sockets[0].fd);
}

// gRPC's clients update the window as they read, and give up where that fails.
TEST_F(ListenerTest, AShutdownWaitsForAClientThatReadsLate) {
  Start();
  RawClient client(port());
  client.Begin();
  // gRPC closes a connection that it cannot write to, and a window update is answered with a reset
  // from then on.
  client.AwaitSettings();
  absl::Notification over;
  std::thread shutdown([&] {
    listener_->Shutdown(absl::Now() + kPatience);
    over.Notify();
  });
  client.AwaitServersEnd();
  EXPECT_FALSE(over.WaitForNotificationWithTimeout(absl::Milliseconds(300)));
  EXPECT_TRUE(client.SendsWindowUpdate());
  absl::SleepFor(absl::Milliseconds(100));  // for the reset that must not come
  EXPECT_TRUE(client.SendsWindowUpdate());
  EXPECT_TRUE(client.EndsBy(absl::Now() + kPatience, false));
  client.Close();
  shutdown.join();
}

}  // namespace
}  // namespace rivulet
