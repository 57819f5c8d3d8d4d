// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/connections/listening_sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

// Several addresses need one port: how often another port is tried if the free port of the first
// address is taken at another address.
constexpr int kFreePortTries = 8;

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

bool IsAny(const Address& address) {
  if (address.storage.ss_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &address.storage, sizeof(v4));
    return v4.sin_addr.s_addr == htonl(INADDR_ANY);
  }
  sockaddr_in6 v6{};
  std::memcpy(&v6, &address.storage, sizeof(v6));
  return IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr);
}

// The port lies at the same place in both families.
void SetPort(int port, Address* address) {
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  const in_port_t network = htons(static_cast<uint16_t>(port));
  std::memcpy(reinterpret_cast<char*>(&address->storage) + offsetof(sockaddr_in, sin_port),
              &network, sizeof(network));
}

int PortOf(const sockaddr_storage& storage) {
  in_port_t network = 0;
  std::memcpy(&network, reinterpret_cast<const char*>(&storage) + offsetof(sockaddr_in, sin_port),
              sizeof(network));
  return ntohs(network);
}

Address AnyIpv6() {
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  Address address;
  std::memcpy(&address.storage, &any, sizeof(any));
  address.length = sizeof(any);
  return address;
}

// The addresses of the host, each once; for every address [::] first, which also takes IPv4.
absl::StatusOr<std::vector<Address>> Resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), "0", &hints, &found);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  const absl::Cleanup free = [found] { freeaddrinfo(found); };
  std::vector<Address> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
    Address address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
    if (IsAny(address)) {
      Address any4 = address;
      if (address.storage.ss_family == AF_INET6) {
        sockaddr_in any{};
        any.sin_family = AF_INET;
        any4 = Address();
        std::memcpy(&any4.storage, &any, sizeof(any));
        any4.length = sizeof(any);
      }
      return std::vector<Address>{AnyIpv6(), any4};
    }
    const bool known = std::any_of(addresses.begin(), addresses.end(), [&](const Address& other) {
      return other.length == address.length &&
             std::memcmp(&other.storage, &address.storage, address.length) == 0;
    });
    if (!known) addresses.push_back(address);
  }
  if (addresses.empty()) return absl::UnavailableError("the host has no IP address");
  return addresses;
}

// A socket that listens on `address`, or -1 and errno.
int Listen(const Address& address, absl::Duration user_timeout) {
  const int fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int on = 1, off = 0;
  const auto timeout_ms = static_cast<unsigned>(absl::ToInt64Milliseconds(user_timeout));
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // Accepted sockets inherit both options.
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
  if (address.storage.ss_family == AF_INET6) {
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, IsAny(address) ? &off : &on, sizeof(on));
  }
  const auto* name = reinterpret_cast<const sockaddr*>(&address.storage);
  if (bind(fd, name, address.length) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

void Close(ListeningSockets* all) {
  for (const ListeningSocket& socket : all->sockets) close(socket.fd);
  all->sockets.clear();
}

// Listens on all `addresses` that the machine has, at one port. `taken`: another socket has it.
absl::StatusOr<ListeningSockets> ListenOnAll(std::vector<Address> addresses, int port,
                                             absl::Duration user_timeout, bool* taken) {
  ListeningSockets all;
  all.port = port;
  int error = 0;
  for (Address& address : addresses) {
    SetPort(all.port, &address);
    ListeningSocket socket;
    socket.fd = Listen(address, user_timeout);
    if (socket.fd < 0) {
      error = errno;
      *taken = error == EADDRINUSE;
      if (!*taken) continue;
      Close(&all);
      break;
    }
    socklen_t length = sizeof(socket.address);
    getsockname(socket.fd, reinterpret_cast<sockaddr*>(&socket.address), &length);
    all.port = PortOf(socket.address);
    all.sockets.push_back(socket);
    if (IsAny(address)) break;  // [::] has IPv4 as well
  }
  if (all.sockets.empty()) return absl::UnavailableError(std::strerror(error));
  return all;
}

}  // namespace

absl::StatusOr<ListeningSockets> ListenOn(const HostPort& address, absl::Duration user_timeout) {
  RIVULET_ASSIGN_OR_RETURN(const std::vector<Address> addresses, Resolve(address.host));
  for (int tries = 1;; ++tries) {
    bool taken = false;
    auto all = ListenOnAll(addresses, address.port, user_timeout, &taken);
    if (all.ok() || !taken || address.port != 0 || tries == kFreePortTries) return all;
  }
}

absl::Status TryToListen(const HostPort& address) {
  RIVULET_ASSIGN_OR_RETURN(std::vector<Address> addresses, Resolve(address.host));
  bool taken = false;
  auto all = ListenOnAll(std::move(addresses), address.port, absl::Seconds(1), &taken);
  if (all.ok()) Close(&*all);
  return taken ? absl::OkStatus() : all.status();
}

bool CollidesWith(const HostPort& address, const HostPort& other) {
  if (address.port != other.port || address.port == 0) return false;
  // At a free port, because a running server may have this port.
  auto first = ListenOn({address.host, 0}, absl::Seconds(1));
  if (!first.ok()) return false;
  auto second = ListenOn({other.host, first->port}, absl::Seconds(1));
  Close(&*first);
  if (second.ok()) Close(&*second);
  return !second.ok();
}

}  // namespace rivulet
