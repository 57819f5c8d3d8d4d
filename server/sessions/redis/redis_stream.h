// SPDX-License-Identifier: Apache-2.0
// RedisStream: bytes to and from one address, over TCP or TLS, without waiting.
#pragma once

#include <openssl/ssl.h>
#include <sys/socket.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/sessions/redis/redis_url.h"

namespace rivulet {

// The common part of TLS connections: TLS 1.2 or later, the authorities, our own certificate.
struct FreeTlsContext {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using RedisTls = std::unique_ptr<SSL_CTX, FreeTlsContext>;

// Reads the files. Errors: INVALID_ARGUMENT (CONFIG_INVALID), which names setting, file and fault.
absl::StatusOr<RedisTls> MakeRedisTls(const RedisOptions& options);

// Errors of all calls: FAILED_PRECONDITION (SESSION_STORE_REFUSED): TLS is refused, by us (the
// chain or the name of the certificate) or by the other side, or the other side speaks no TLS;
// UNAVAILABLE: anything else. Messages begin with a verb: the caller puts the address before them.
// Thread: one, which blocks SIGPIPE.
class RedisStream {
 public:
  struct SocketAddress {
    sockaddr_storage bytes = {};
    socklen_t size = 0;
  };
  // Begins to connect. With `tls`, which is not kept, the certificate must be for `name`, a name or
  // an address.
  static absl::StatusOr<std::unique_ptr<RedisStream>> Open(const SocketAddress& address,
                                                           SSL_CTX* tls, const std::string& name);
  ~RedisStream();
  RedisStream(const RedisStream&) = delete;
  RedisStream& operator=(const RedisStream&) = delete;

  int fd() const { return fd_; }
  // The events that poll() shall wait for before the last call is made again.
  short events() const { return events_; }

  // Goes on with connecting. True: done, Read and Write may be called.
  absl::StatusOr<bool> Connect();
  // The number of bytes read; 0: none are there now. An end of the stream is an error.
  absl::StatusOr<size_t> Read(char* bytes, size_t size);
  // The number of `bytes` written; 0: none fit now. REQUIRES: `bytes` is not empty, and after a
  // call that wrote none, begins with the bytes of that call.
  absl::StatusOr<size_t> Write(absl::string_view bytes);

 private:
  struct FreeTls {
    void operator()(SSL* tls) const { SSL_free(tls); }
  };
  explicit RedisStream(int fd) : fd_(fd) {}
  // The outcome of an OpenSSL call that returned `result` <= 0; OK: it waits for events_.
  absl::Status AfterTls(int result);

  const int fd_;
  short events_ = 0;
  bool connected_ = false;  // TCP
  std::unique_ptr<SSL, FreeTls> tls_;
};

// The FAILED_PRECONDITION that ends a server's start.
absl::Status RedisRefused(absl::string_view message);

}  // namespace rivulet
