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
  TlsFiles tls;             // for the socket; none: plaintext
  KeyRing* keys = nullptr;  // clients need one of these keys; null: no key. Outlives the server
  bool reflection = true;
  int max_message_bytes =
      4 << 20;             // of a request; without a socket 1 GiB, as the client is this process
  int max_streams = 1000;  // requests at once on one connection
  int max_multiplexed = 4096;           // requests at once on one Multiplex stream
  int max_connections = 0;              // at once; 0: as descriptors allow, at most 65,536
  int max_connections_per_address = 0;  // 0: no limit
  absl::Duration max_connection_idle = absl::InfiniteDuration();  // without a call; then GOAWAY
  absl::Duration max_connection_age = absl::InfiniteDuration();   // then GOAWAY; replies go on
  std::string snapshot_key;                            // for the HMAC of snapshots; empty: none
  int64_t max_restore_bytes = int64_t{512} << 20;      // RestoreOptions::memory_bytes
  absl::Duration restore_timeout = absl::Seconds(30);  // RestoreOptions::timeout
  RequestSinks sinks;  // for calls over the socket; they outlive the server
};

// OK if a process with descriptors for `fit` more connections can serve `wanted` connections.
// Errors: INVALID_ARGUMENT (max-connections).
absl::Status CheckMaxConnections(int wanted, int64_t fit);

// Thread: any, but Shutdown and the destructor once.
class GrpcServer {
 public:
  // The server serves once Create has returned. Health then says SERVING for every served model
  // and, if there is a model, for "". `models` must outlive this object. Errors: INVALID_ARGUMENT
  // (address; more connections than there are descriptors for; TLS files), NOT_FOUND (TLS files),
  // UNAVAILABLE (address in use or not of this machine).
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Create(const ServedModels* models,
                                                            const GrpcServerOptions& options);
  // Ends every call at once.
  ~GrpcServer();

  // The port that it listens on; 0 without a socket.
  int port() const;
  // The connections over the socket.
  Connections& connections() { return calls_.connections; }
  const ServerCalls& calls() const { return calls_; }
  // Connects to the socket as clients do, but without their limits, and asks for health. OK if the
  // call was answered. Errors: RESOURCE_EXHAUSTED (no descriptor or port for it, which says nothing
  // about the listener), UNAVAILABLE, DEADLINE_EXCEEDED. Thread: one at a time.
  absl::Status CallSelf(absl::Duration timeout);
  // A channel that needs no socket. Valid while this server serves.
  std::shared_ptr<grpc::Channel> InProcessChannel();

  // grpc.health.v1 for a model's name, or "" for the server as a whole.
  void SetServing(const std::string& service, bool serving);
  // Sets NOT_SERVING for all, for good.
  void StopServing();

  // Ends the Multiplex streams without an open request. Then waits until no call that
  // ServerCalls::active counts runs, and clients have received what was sent to them. False if that
  // takes longer than until `deadline`.
  bool WaitUntilIdle(absl::Time deadline) {
    multiplex_.Drain();
    return calls_.active.WaitUntilNone(deadline) && calls_.connections.AwaitDelivered(deadline);
  }
  // Takes no more calls, gives running calls until `deadline`, cancels the rest and waits for their
  // end. The engines must be running.
  void Shutdown(absl::Time deadline);

 private:
  GrpcServer(const ServedModels* models, const GrpcServerOptions& options);

  ServerCalls calls_;
  InferenceService inference_;
  SessionService sessions_;
  MultiplexService multiplex_;
  UnknownMethods unknown_;
  std::unique_ptr<CallWatch> call_watch_;  // none without a socket
  std::unique_ptr<Listener> listener_;
};

}  // namespace rivulet
