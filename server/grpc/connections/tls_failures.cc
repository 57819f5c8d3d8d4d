// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/connections/tls_failures.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "server/base/mutex.h"
#include "server/grpc/connections/connections.h"
#include "server/log.h"

namespace rivulet {
namespace {

// gRPC 1.51 makes a socket's SSL object while it is handed the socket, on the same thread. So an
// SSL object that this thread makes meanwhile belongs to this peer.
thread_local const std::string* handed_over = nullptr;

struct Peers {
  Mutex mutex;
  absl::flat_hash_map<const void*, std::string> names ABSL_GUARDED_BY(mutex);  // by SSL object
};

Peers& AllPeers() {
  static auto* const peers = new Peers;  // never destroyed: gRPC's threads may outlive the rest
  return *peers;
}

void Report(const SSL* ssl, std::string reason) {
  std::string peer;
  {
    MutexLock lock(&AllPeers().mutex);
    peer = AllPeers().names[ssl];
  }
  LogLimited(LogLevel::kWarning, "tls_failed",
             {{"peer", std::move(peer)}, {"reason", std::move(reason)}});
}

// OpenSSL calls this with every header and message that it has read or is about to write.
void OnMessage(int is_written, int, int type, const void* data, size_t size, SSL* ssl, void*) {
  if (SSL_is_init_finished(ssl) != 0) return;
  const auto* const bytes = static_cast<const unsigned char*>(data);
  if (type == SSL3_RT_HEADER && is_written == 0 && size > 0) {
    // OpenSSL answers bytes that are not TLS without an alert.
    if (bytes[0] < SSL3_RT_CHANGE_CIPHER_SPEC || bytes[0] > SSL3_RT_APPLICATION_DATA) {
      Report(ssl, "what the client sent is not TLS");
    }
    return;
  }
  if (type != SSL3_RT_ALERT || size < 2 || bytes[0] != SSL3_AL_FATAL) return;
  const char* const alert = SSL_alert_desc_string_long(bytes[1]);
  if (is_written == 0) return Report(ssl, absl::StrCat("the client says: ", alert));
  const char* const cause = ERR_reason_error_string(ERR_peek_last_error());
  Report(ssl, cause != nullptr ? cause : alert);
}

void OnNew(void* ssl, void*, CRYPTO_EX_DATA*, int, long, void*) {
  if (handed_over == nullptr) return;
  {
    MutexLock lock(&AllPeers().mutex);
    AllPeers().names[ssl] = *handed_over;
  }
  SSL_set_msg_callback(static_cast<SSL*>(ssl), &OnMessage);
}

void OnFree(void* ssl, void*, CRYPTO_EX_DATA*, int, long, void*) {
  MutexLock lock(&AllPeers().mutex);
  AllPeers().names.erase(ssl);
}

}  // namespace

void WithTlsPeer(int fd, absl::FunctionRef<void()> hand_over) {
  static const int registered = SSL_get_ex_new_index(0, nullptr, &OnNew, nullptr, &OnFree);
  (void)registered;
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length);
  const std::string peer = PeerName(address);
  handed_over = &peer;
  hand_over();
  handed_over = nullptr;
}

}  // namespace rivulet
