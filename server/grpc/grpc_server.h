// SPDX-License-Identifier: Apache-2.0
// GrpcServer: the gRPC side of a server: transport settings, service, health, reflection.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/grpc/calls/served_models.h"
#include "server/grpc/calls/server_calls.h"
#include "server/grpc/calls/unknown_methods.h"
#include "server/grpc/connections/call_watch.h"
#include "server/grpc/connections/tls_files.h"
#include "server/grpc/generate/inference_service.h"
#include "server/grpc/multiplex/multiplex_service.h"
#include "server/grpc/session/session_service.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace rivulet {

class Listener;

struct GrpcServerOptions {
  std::string listen;       // HOST:PORT; "" = no socket, in-process channels only
  TlsFiles tls;             // of the socket; none: plaintext
  KeyRing* keys = nullptr;  // that clients need one of; null: none. Outlives the server
  bool reflection = true;
  int max_message_bytes =
      4 << 20;             // of a request; without a socket 1 GiB, as the client is this process
  int max_streams = 1000;  // requests at once on one connection
  int max_multiplexed = 4096;  // requests at once on one Multiplex stream
  int max_connections = 0;     // at once; 0: as many as there are descriptors for, at most 65,536
  int max_connections_per_address = 0;                            // 0: no limit
  absl::Duration max_connection_idle = absl::InfiniteDuration();  // without a call; then GOAWAY
  absl::Duration max_connection_age = absl::InfiniteDuration();   // then GOAWAY; replies go on
  std::string snapshot_key;                            // of the HMAC of snapshots; empty: none
  int64_t max_restore_bytes = int64_t{512} << 20;      // of all snapshots that are on their way in
  absl::Duration restore_timeout = absl::Seconds(30);  // RestoreOptions::timeout
  RequestSinks sinks;  // of calls over the socket; they outlive the server
};

// Thread: any, but Shutdown and the destructor once.
class GrpcServer {
 public:
  // Serves from its return on, with every model that is served and, where there is one, ""
  // SERVING. `models` must outlive this object. Errors: INVALID_ARGUMENT (address; more connections
  // than there are descriptors for; TLS files), NOT_FOUND (TLS files), UNAVAILABLE (address in use
  // or not of this machine).
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Create(const ServedModels* models,
                                                            const GrpcServerOptions& options);
  // Ends every call at once.
  ~GrpcServer();

  // What it listens on; 0 without a socket.
  int port() const;
  // Whose calls are answered, except those of in-process channels.
  Connections& connections() { return calls_.connections; }
  const ServerCalls& calls() const { return calls_; }
  // Makes a connection to the socket that clients connect to, past every limit, and asks for
  // health. OK if it was answered. Errors: RESOURCE_EXHAUSTED (what it takes to ask is not to be
  // had; says nothing about the listener), UNAVAILABLE, DEADLINE_EXCEEDED. Thread: one at a time.
  absl::Status CallSelf(absl::Duration timeout);
  // A channel that needs no socket. Valid while this server serves.
  std::shared_ptr<grpc::Channel> InProcessChannel();

  // grpc.health.v1 for a model's name, or "" for the server as a whole.
  void SetServing(const std::string& service, bool serving);
  // NOT_SERVING for all, for good.
  void StopServing();

  // Ends the Multiplex streams that have no request open, and waits until no Generate, Score,
  // Multiplex or call of SessionService is on its way and clients have received what was sent to
  // them. False if that is not so at `deadline`.
  bool WaitUntilIdle(absl::Time deadline) {
    multiplex_.Drain();
    return calls_.active.WaitUntilNone(deadline) && calls_.connections.AwaitDelivered(deadline);
  }
  // Takes no more calls, gives running ones until `deadline`, cancels the rest and waits for their
  // end. The engines must be running.
  void Shutdown(absl::Time deadline);

 private:
  GrpcServer(const ServedModels* models, const GrpcServerOptions& options);
  absl::Status CheckMaxConnections(int wanted) const;

  ServerCalls calls_;
  InferenceService inference_;
  SessionService sessions_;
  MultiplexService multiplex_;
  UnknownMethods unknown_;
  std::unique_ptr<CallWatch> call_watch_;  // none without a socket
  std::unique_ptr<Listener> listener_;
};

}  // namespace rivulet
