// SPDX-License-Identifier: Apache-2.0
// What all listeners of a server have in common: transport settings, reflection, limits on
// connections, and errors of listening.
#pragma once

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/grpc/connections/acceptor.h"
#include "server/grpc/connections/connections.h"
#include "server/grpc/connections/tls_files.h"

namespace rivulet {

struct ListenerOptions {
  std::string address;  // HOST:PORT; "" = no socket, in-process channels only
  std::string setting;  // the setting that holds the address, for errors
  TlsFiles tls = {};    // none: plaintext
  bool reflection = true;
  int max_message_bytes = 0;            // of a request
  int max_streams = 0;                  // requests at once on one connection
  int max_connections = 0;              // at once, as descriptors allow; 0: 65,536
  int max_connections_per_address = 0;  // 0: no limit
  // A connection that was silent for this long is pinged, with or without calls, and closed if
  // there is no answer. Clients may ping at the same interval.
  absl::Duration keepalive_time = absl::Seconds(30);
  absl::Duration keepalive_timeout = absl::Seconds(10);
  absl::Duration handshake_timeout = absl::Seconds(10);           // until HTTP/2 has begun
  absl::Duration max_connection_idle = absl::InfiniteDuration();  // without a call; then GOAWAY
  absl::Duration max_connection_age = absl::InfiniteDuration();   // then GOAWAY; replies go on
};

// Sets the transport as `options` say, and the settings that all servers share. Opens no socket.
void SetUpListener(const ListenerOptions& options, grpc::ServerBuilder* builder);

// A gRPC server and the sockets that it listens on. Thread: any, but Shutdown and the
// destructor once.
class Listener {
 public:
  // Starts the built server, with the socket. `connections` is borrowed, and gets its limits here.
  // Errors: INVALID_ARGUMENT (address; more connections than there are descriptors for; TLS files),
  // NOT_FOUND (TLS files), UNAVAILABLE (address in use or not of this machine).
  static absl::StatusOr<std::unique_ptr<Listener>> Start(const ListenerOptions& options,
                                                         grpc::ServerBuilder* builder,
                                                         Connections* connections);

  grpc::Server& server() { return *server_; }
  Acceptor* acceptor() { return acceptor_.get(); }  // null without a socket
  // The port that was bound; 0 without a socket.
  int port() const { return acceptor_ == nullptr ? 0 : acceptor_->port(); }

  // Takes no more connections and ends the open connections after the data sent on them. Clients
  // have until `deadline` to read this data and to end their side; data unread then is lost. Calls
  // of in-process channels are cancelled at `deadline`. Waits for the end of all calls.
  void Shutdown(absl::Time deadline);

 private:
  using External = grpc::experimental::ExternalConnectionAcceptor;

  Connections* connections_ = nullptr;  // null without a socket
  std::unique_ptr<External> external_;
  std::unique_ptr<External> external_self_;  // plaintext: Acceptor::ConnectToSelf
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Acceptor> acceptor_;  // last: it hands sockets to both members above
};

}  // namespace rivulet
