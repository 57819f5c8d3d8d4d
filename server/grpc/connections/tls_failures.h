// SPDX-License-Identifier: Apache-2.0
// Logs TLS handshakes that fail, with the client's address (event `tls_failed`). gRPC logs why a
// handshake failed, but not the client's address, and tells the client neither.
#pragma once

#include "absl/functional/function_ref.h"

namespace rivulet {

// Calls `hand_over`, in which gRPC gets the connected socket `fd`. If gRPC makes the TLS connection
// of the socket during the call, a failed handshake is logged later, with the socket's peer.
// Thread: any.
void WithTlsPeer(int fd, absl::FunctionRef<void()> hand_over);

}  // namespace rivulet
