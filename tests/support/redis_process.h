// SPDX-License-Identifier: Apache-2.0
// A redis-server process of a test, on free ports of loopback, with a directory of its own.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "server/sessions/redis/redis_reply.h"
#include "tests/support/random_model.h"

namespace rivulet {

// Thread: one.
class RedisProcess {
 public:
  // Whether redis-server is installed; otherwise a test skips itself.
  static bool Installed();

  // `settings`: arguments of redis-server. Without settings it keeps nothing on disk. Waits until
  // the server answers. Ends this process if the server does not start.
  explicit RedisProcess(std::vector<std::string> settings = {});
  // With TLS, too, on another port.
  struct TlsFiles {
    std::string cert, key, ca;
    bool wants_clients = false;  // clients must show a certificate of `ca`
  };
  static RedisProcess WithTls(const TlsFiles& tls);
  // A Sentinel of a master on 127.0.0.1:`port`.
  static std::vector<std::string> SentinelOf(const std::string& name, int port);
  ~RedisProcess();
  RedisProcess(const RedisProcess&) = delete;
  RedisProcess& operator=(const RedisProcess&) = delete;

  int port() const { return port_; }
  int tls_port() const { return tls_port_; }
  const testing::TempDir& directory() const { return directory_; }

  void Stop();      // SIGSTOP; waits until it has stopped
  void Continue();  // SIGCONT
  void Kill();      // SIGKILL, if it runs
  void Start();     // again, on the same port, with its directory

  // The answer to a command. Ends this process if there is no answer.
  RedisReply Command(const std::vector<std::string>& command) const;
  // The value of one line of INFO.
  std::string Info(const std::string& field) const;

 private:
  RedisProcess(std::vector<std::string> settings, bool tls);
  std::vector<std::string> Arguments() const;
  bool TryStart();

  const testing::TempDir directory_;
  const std::vector<std::string> settings_;
  const bool tls_;
  int port_ = 0, tls_port_ = 0;
  pid_t pid_ = -1;
};

}  // namespace rivulet
