// SPDX-License-Identifier: Apache-2.0
// Sockets that listen on an address.
#pragma once

#include <sys/socket.h>

#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/config/server_config.h"

namespace rivulet {

struct ListeningSocket {
  int fd = -1;               // non-blocking; the caller closes it
  sockaddr_storage address;  // the bound address, with its port
};

struct ListeningSockets {
  std::vector<ListeningSocket> sockets;  // at least one, all of the same port
  int port = 0;
};

// Listens on every address of the host; "0.0.0.0" and "[::]" both mean every address of the
// machine, IPv4 and IPv6. Port 0: any free port. Addresses of a family that the machine does not
// have are left out, unless there are no other addresses. Another socket on the port is an error,
// as SO_REUSEPORT is off. Connections have TCP_NODELAY, and end when sent data is not acknowledged
// for `user_timeout`. Errors: UNAVAILABLE, with the system's message.
absl::StatusOr<ListeningSockets> ListenOn(const HostPort& address, absl::Duration user_timeout);

// Listens on `address` for a moment. OK also if another socket has the port. Errors: as ListenOn.
absl::Status TryToListen(const HostPort& address);

// Whether a socket that listens on one address keeps others from listening on the other.
bool CollidesWith(const HostPort& address, const HostPort& other);

}  // namespace rivulet
