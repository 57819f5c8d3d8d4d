// SPDX-License-Identifier: Apache-2.0
#include "tests/support/redis_process.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"

namespace rivulet {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Free now; another process may take it before Redis does.
int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof address;
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0) std::abort();
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  close(fd);
  return ntohs(address.sin_port);
}

// The answer to a command; nothing where the server does not answer.
std::optional<RedisReply> Ask(int port, const std::vector<std::string>& command) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(port);
  const std::string bytes = FormatRedisCommand(command);
  std::optional<RedisReply> reply;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size())) {
    RedisReplyReader reader;
    char buffer[4096];
    while (!reply.has_value()) {
      const ssize_t read = recv(fd, buffer, sizeof buffer, 0);
      if (read <= 0) break;
      reader.Feed({buffer, static_cast<size_t>(read)});
      reply = reader.Next().value_or(std::nullopt);
    }
  }
  close(fd);
  return reply;
}

std::vector<std::string> TlsSettings(const RedisProcess::TlsFiles& tls) {
  return {"--tls-cert-file",    tls.cert, "--tls-key-file",     tls.key,
          "--tls-ca-cert-file", tls.ca,   "--tls-auth-clients", tls.wants_clients ? "yes" : "no"};
}

}  // namespace

bool RedisProcess::Installed() {
  for (const absl::string_view folder : absl::StrSplit(std::getenv("PATH"), ':')) {
    if (access(absl::StrCat(folder, "/redis-server").c_str(), X_OK) == 0) return true;
  }
  return false;
}

std::vector<std::string> RedisProcess::SentinelOf(const std::string& name, int port) {
  return {"--sentinel", absl::StrCat("sentinel monitor ", name, " 127.0.0.1 ", port, " 1"),
          absl::StrCat("sentinel down-after-milliseconds ", name, " 200"),
          absl::StrCat("sentinel failover-timeout ", name, " 1000")};
}

RedisProcess::RedisProcess(std::vector<std::string> settings)
    : RedisProcess(std::move(settings), false) {}

RedisProcess RedisProcess::WithTls(const TlsFiles& tls) { return {TlsSettings(tls), true}; }

RedisProcess::RedisProcess(std::vector<std::string> settings, bool tls)
    : settings_(std::move(settings)), tls_(tls) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    port_ = FreePort();
    if (tls_) tls_port_ = FreePort();
    if (TryStart()) return;
  }
  std::fprintf(stderr, "redis-server does not start\n");
  std::exit(1);
}

RedisProcess::~RedisProcess() { Kill(); }

std::vector<std::string> RedisProcess::Arguments() const {
  std::vector<std::string> args = {"redis-server"};
  const bool sentinel = !settings_.empty() && settings_[0] == "--sentinel";
  if (sentinel) {
    // Sentinels write into their configuration: it is a file, and made once.
    const std::string file = directory_.File("sentinel.conf");
    if (access(file.c_str(), F_OK) != 0) {
      const auto lines = absl::MakeConstSpan(settings_).subspan(1);
      if (!testing::WriteFile(file, absl::StrCat(absl::StrJoin(lines, "\n"), "\n")).ok())
        std::abort();
    }
    args.insert(args.end(), {file, "--sentinel"});
  }
  args.insert(args.end(), {"--port", std::to_string(port_), "--bind", "127.0.0.1", "--dir",
                           directory_.path(), "--logfile", directory_.File("log"), "--save", ""});
  if (tls_) args.insert(args.end(), {"--tls-port", std::to_string(tls_port_)});
  if (!sentinel) args.insert(args.end(), settings_.begin(), settings_.end());
  return args;
}

bool RedisProcess::TryStart() {
  std::vector<std::string> args = Arguments();
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    // It must not outlive a test that crashes.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  while (true) {
    if (Ask(port_, {"PING"}).has_value()) return true;
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void RedisProcess::Stop() {
  kill(pid_, SIGSTOP);
  int status = 0;
  waitpid(pid_, &status, WUNTRACED);
}

void RedisProcess::Continue() { kill(pid_, SIGCONT); }

void RedisProcess::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void RedisProcess::Start() {
  if (TryStart()) return;
  std::fprintf(stderr, "redis-server does not start again\n");
  std::exit(1);
}

RedisReply RedisProcess::Command(const std::vector<std::string>& command) const {
  std::optional<RedisReply> reply = Ask(port_, command);
  if (reply.has_value()) return *std::move(reply);
  std::fprintf(stderr, "redis-server does not answer %s\n", command[0].c_str());
  std::exit(1);
}

std::string RedisProcess::Info(const std::string& field) const {
  const RedisReply info = Command({"INFO"});
  for (const absl::string_view line : absl::StrSplit(info.text, "\r\n")) {
    if (absl::StartsWith(line, field + ":")) return std::string(line.substr(field.size() + 1));
  }
  return "";
}

}  // namespace rivulet
