// SPDX-License-Identifier: Apache-2.0
// A server on loopback whose answers a test chooses.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/sessions/redis/redis_reply.h"

namespace rivulet {

class FakeRedis {
 public:
  // Returns the bytes that answer a command; nullopt closes the connection. `connection` counts
  // from 0. Thread: one per connection.
  using Answer = std::function<std::optional<std::string>(int connection,
                                                          const std::vector<RedisReply>& command)>;

  explicit FakeRedis(Answer answer)
      : answer_(std::move(answer)), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (bind(listener_, any, size) != 0 || listen(listener_, 100) != 0) std::abort();
    getsockname(listener_, any, &size);
    port_ = ntohs(address.sin_port);
    accepting_ = std::thread([this] { Accept(); });
  }
  ~FakeRedis() {
    shutdown(listener_, SHUT_RDWR);
    accepting_.join();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (const int fd : open_) shutdown(fd, SHUT_RDWR);
    }
    for (std::thread& thread : serving_) thread.join();
    for (const int fd : open_) close(fd);
    close(listener_);
  }
  FakeRedis(const FakeRedis&) = delete;
  FakeRedis& operator=(const FakeRedis&) = delete;

  int port() const { return port_; }

  static std::string Text(absl::string_view text) {
    return absl::StrCat("$", text.size(), "\r\n", text, "\r\n");
  }
  // The answers of a suitable Redis while a client connects; no answer to other commands.
  static std::optional<std::string> Greeting(const std::vector<RedisReply>& command,
                                             absl::string_view version = "7.0.0",
                                             absl::string_view mode = "standalone",
                                             absl::string_view role = "master") {
    if (command[0].text == "INFO") {
      return Text(absl::StrCat("# Server\r\nredis_version:", version, "\r\nredis_mode:", mode,
                               "\r\n\r\nloading:0\r\nrole:", role, "\r\n"));
    }
    const bool permissions =
        command[0].text == "EVAL" && command[1].text.find("acl_check_cmd") != std::string::npos;
    if (permissions) return "*0\r\n";
    return std::nullopt;
  }
  // The answer to a Read: a record with `bytes`.
  static std::string Record(absl::string_view bytes) {
    return absl::StrCat("*6\r\n:0\r\n", Text("id"),
                        Text(absl::StrCat("rvs1", "claim-0000000001", "0000000000000000", bytes)),
                        ":1\r\n:0\r\n:0\r\n");
  }

 private:
  void Accept() {
    for (int number = 0;; ++number) {
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) return;
      std::lock_guard<std::mutex> lock(mutex_);
      open_.push_back(fd);
      serving_.emplace_back([this, fd, number] { Serve(fd, number); });
    }
  }
  void Serve(int fd, int number) {
    RedisReplyReader reader;  // commands have the form of answers
    std::vector<char> buffer(size_t{1} << 16);
    while (true) {
      const ssize_t read = recv(fd, buffer.data(), buffer.size(), 0);
      if (read <= 0) return;
      reader.Feed({buffer.data(), static_cast<size_t>(read)});
      while (true) {
        const auto command = reader.Next();
        if (!command.ok() || !command->has_value()) break;
        const std::optional<std::string> bytes = answer_(number, (*command)->elements);
        if (!bytes.has_value()) {
          shutdown(fd, SHUT_RDWR);
          return;
        }
        send(fd, bytes->data(), bytes->size(), MSG_NOSIGNAL);
      }
    }
  }

  const Answer answer_;
  const int listener_;
  int port_ = 0;
  std::mutex mutex_;
  std::vector<int> open_;             // guarded by mutex_
  std::vector<std::thread> serving_;  // used by accepting_, then by the destructor
  std::thread accepting_;
};

}  // namespace rivulet
