// SPDX-License-Identifier: Apache-2.0
// What every listener of a server has in common: transport settings, reflection, and why it could
// not listen.
#pragma once

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace rivulet {

struct ListenerOptions {
  std::string address;  // HOST:PORT; "" = no socket, in-process channels only
  std::string setting;  // that holds the address, for errors
  bool reflection = true;
  int max_message_bytes = 0;  // of a request
  int max_streams = 0;        // requests at once on one connection
};

// Sets what `options` and we ask of the transport. Plaintext; no socket is opened yet.
void SetUpListener(const ListenerOptions& options, grpc::ServerBuilder* builder);

// Starts what was built, with the socket; the port that was bound is in *port (0 without one).
// Errors: INVALID_ARGUMENT (address), UNAVAILABLE (address in use or not of this machine).
absl::StatusOr<std::unique_ptr<grpc::Server>> StartListener(const ListenerOptions& options,
                                                            grpc::ServerBuilder* builder,
                                                            int* port);

}  // namespace rivulet
