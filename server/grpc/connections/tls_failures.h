// SPDX-License-Identifier: Apache-2.0
// Logs TLS handshakes that fail, with the client's address (event `tls_failed`). gRPC logs why one
// failed, but not whose it was, and its clients are told neither.
#pragma once

#include "absl/functional/function_ref.h"

namespace rivulet {

// Calls `hand_over`, in which gRPC gets the connected socket `fd`. If gRPC makes the socket's TLS
// connection in there, a failure of its handshake is logged later, with the socket's peer. Thread:
// any.
void WithTlsPeer(int fd, absl::FunctionRef<void()> hand_over);

}  // namespace rivulet
