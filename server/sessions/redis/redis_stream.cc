// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/redis/redis_stream.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

// The reason of OpenSSL's oldest error, after which its queue is empty.
std::string TlsReason() {
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  if (ERR_SYSTEM_ERROR(error)) return std::strerror(ERR_GET_REASON(error));
  const char* const reason = ERR_reason_error_string(error);
  return reason == nullptr ? "unknown reason" : reason;
}

absl::Status BadFile(absl::string_view setting, const std::string& path, absl::string_view wrong) {
  const std::string name = absl::StrCat("session-store-", setting);
  return InvalidField("CONFIG_INVALID", name,
                      absl::StrCat(name, " ", path, " ", wrong, ": ", TlsReason()));
}

// For keys that need a passphrase: the server has none.
int NoPassphrase(char*, int, int, void*) { return -1; }

absl::Status Errno(absl::string_view what, int error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(error)));
}

// Small commands leave at once, and a vanished peer is noticed even while no command is sent.
void SetSocketOptions(int fd) {
  const std::pair<int, int> tcp[] = {
      {TCP_NODELAY, 1}, {TCP_KEEPIDLE, 15}, {TCP_KEEPINTVL, 5}, {TCP_KEEPCNT, 3}};
  for (const auto& [option, value] : tcp) {
    setsockopt(fd, IPPROTO_TCP, option, &value, sizeof value);
  }
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

bool IsIpAddress(const std::string& name) {
  unsigned char bytes[16];
  return inet_pton(AF_INET, name.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, name.c_str(), bytes) == 1;
}

// The certificate must be for `name`, and a server with several names learns which name we want.
bool SetServerName(SSL* tls, const std::string& name) {
  if (IsIpAddress(name)) {
    return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls), name.c_str()) == 1;
  }
  return SSL_set1_host(tls, name.c_str()) == 1 && SSL_set_tlsext_host_name(tls, name.c_str()) == 1;
}

// AfterTls must see only errors of the call itself.
void BeforeTls() {
  ERR_clear_error();
  errno = 0;
}

int ToInt(size_t size) {
  return static_cast<int>(std::min<size_t>(size, std::numeric_limits<int>::max()));
}

}  // namespace

absl::Status RedisRefused(absl::string_view message) {
  return MakeError(absl::StatusCode::kFailedPrecondition, message,
                   {.reason = "SESSION_STORE_REFUSED", .field = "session-store"});
}

absl::StatusOr<RedisTls> MakeRedisTls(const RedisOptions& options) {
  ERR_clear_error();
  RedisTls tls(SSL_CTX_new(TLS_client_method()));
  if (tls == nullptr) return absl::UnavailableError(absl::StrCat("TLS: ", TlsReason()));
  SSL_CTX_set_min_proto_version(tls.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(tls.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(tls.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_verify(tls.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_default_passwd_cb(tls.get(), NoPassphrase);
  const std::string &ca = options.ca_file, &cert = options.cert_file, &key = options.key_file;
  if (ca.empty()) {
    SSL_CTX_set_default_verify_paths(tls.get());
  } else if (SSL_CTX_load_verify_locations(tls.get(), ca.c_str(), nullptr) != 1) {
    return BadFile("ca", ca, "cannot be used as CA certificates (PEM)");
  }
  if (cert.empty()) return tls;
  if (SSL_CTX_use_certificate_chain_file(tls.get(), cert.c_str()) != 1) {
    return BadFile("cert", cert, "cannot be used as PEM of a certificate");
  }
  if (SSL_CTX_use_PrivateKey_file(tls.get(), key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return BadFile("key", key, "cannot be used as PEM of the certificate's key, no passphrase");
  }
  return tls;
}

absl::StatusOr<std::unique_ptr<RedisStream>> RedisStream::Open(const SocketAddress& address,
                                                               SSL_CTX* tls,
                                                               const std::string& name) {
  const int fd =
      socket(address.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fd < 0) return Errno("cannot be connected to", errno);
  std::unique_ptr<RedisStream> stream(new RedisStream(fd));
  SetSocketOptions(fd);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address.bytes), address.size) != 0 &&
      errno != EINPROGRESS) {
    return Errno("cannot be connected to", errno);
  }
  stream->events_ = POLLOUT;
  if (tls == nullptr) return stream;
  stream->tls_.reset(SSL_new(tls));
  if (stream->tls_ == nullptr || SSL_set_fd(stream->tls_.get(), fd) != 1 ||
      !SetServerName(stream->tls_.get(), name)) {
    return absl::UnavailableError(absl::StrCat("cannot be asked for TLS: ", TlsReason()));
  }
  SSL_set_connect_state(stream->tls_.get());
  return stream;
}

RedisStream::~RedisStream() {
  if (tls_ != nullptr && connected_) {
    // Announces the end, if this does not block; nobody needs it.
    SSL_shutdown(tls_.get());
    ERR_clear_error();
  }
  tls_.reset();
  close(fd_);
}

absl::StatusOr<bool> RedisStream::Connect() {
  if (!connected_) {
    pollfd ready = {fd_, POLLOUT, 0};
    if (poll(&ready, 1, 0) == 0) return false;
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return Errno("cannot be connected to", error);
    connected_ = true;
    events_ = POLLIN;
  }
  if (tls_ == nullptr) return true;
  BeforeTls();
  const int result = SSL_do_handshake(tls_.get());
  if (result == 1) {
    events_ = POLLIN;
    return true;
  }
  RIVULET_RETURN_IF_ERROR(AfterTls(result));
  return false;
}

absl::Status RedisStream::AfterTls(int result) {
  const int system_error = errno;
  switch (SSL_get_error(tls_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      events_ = POLLIN;
      return absl::OkStatus();
    case SSL_ERROR_WANT_WRITE:
      events_ = POLLIN | POLLOUT;
      return absl::OkStatus();
    case SSL_ERROR_ZERO_RETURN:
      return absl::UnavailableError("has closed the connection");
    case SSL_ERROR_SYSCALL:
      ERR_clear_error();
      return system_error == 0 ? absl::UnavailableError("has closed the connection")
                               : Errno("has lost the connection", system_error);
    default:
      break;
  }
  if (ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
    ERR_clear_error();
    return absl::UnavailableError("has closed the connection");
  }
  const long verified = SSL_get_verify_result(tls_.get());
  if (verified != X509_V_OK) {
    ERR_clear_error();
    return RedisRefused(absl::StrCat("has a certificate that is not accepted: ",
                                     X509_verify_cert_error_string(verified)));
  }
  return RedisRefused(absl::StrCat("does not agree on TLS: ", TlsReason()));
}

absl::StatusOr<size_t> RedisStream::Read(char* bytes, size_t size) {
  events_ = POLLIN;
  if (tls_ != nullptr) {
    BeforeTls();
    const int read = SSL_read(tls_.get(), bytes, ToInt(size));
    if (read > 0) return static_cast<size_t>(read);
    RIVULET_RETURN_IF_ERROR(AfterTls(read));
    return size_t{0};
  }
  const ssize_t read = recv(fd_, bytes, size, 0);
  if (read > 0) return static_cast<size_t>(read);
  if (read == 0) return absl::UnavailableError("has closed the connection");
  if (errno == EAGAIN || errno == EINTR) return size_t{0};
  return Errno("has lost the connection", errno);
}

absl::StatusOr<size_t> RedisStream::Write(absl::string_view bytes) {
  events_ = POLLIN | POLLOUT;
  if (tls_ != nullptr) {
    BeforeTls();
    const int written = SSL_write(tls_.get(), bytes.data(), ToInt(bytes.size()));
    if (written > 0) return static_cast<size_t>(written);
    RIVULET_RETURN_IF_ERROR(AfterTls(written));
    return size_t{0};
  }
  const ssize_t written = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (written >= 0) return static_cast<size_t>(written);
  if (errno == EAGAIN || errno == EINTR) return size_t{0};
  return Errno("has lost the connection", errno);
}

}  // namespace rivulet
