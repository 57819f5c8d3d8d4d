// SPDX-License-Identifier: Apache-2.0
// Server: models, their backends and engines, and the gRPC side, as one object. `rivulet-server` is
// a thin main around it; the `rivulet` command and the tests run one in their own process.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/config/server_config.h"
#include "server/grpc/calls/served_models.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace rivulet {

class AdminServer;
class FileWatch;
class GrpcServer;
class HealthWatch;
class KeyRing;
class ListenerWatch;
class MetricsServer;
class ModelLoader;
class RequestLog;
class Sealer;
class Tracer;

// Thread: any; Drain (or its two parts) and the destructor once each, one after the other.
class Server {
 public:
  // Loads every model, builds backends and engines, then listens: once this returns, requests are
  // answered. Errors: INVALID_ARGUMENT (settings, configuration of a model, two models of one
  // name), NOT_FOUND and DATA_LOSS (model; the message begins with the directory),
  // RESOURCE_EXHAUSTED (memory), UNIMPLEMENTED or UNAVAILABLE (backend absent, address in use).
  static absl::StatusOr<std::unique_ptr<Server>> Create(const ServerConfig& config);
  // Ends at once: running replies end with UNAVAILABLE.
  ~Server();

  // The port that was bound; 0 where config.listen is "".
  int port() const;
  // The port of the listener for operators; 0 where config.admin_listen is "".
  int admin_port() const;
  // The port of /metrics; 0 where config.metrics_listen is "".
  int metrics_port() const;
  // A channel to this server without a socket, with no limit on the size of replies. Valid while
  // the server lives.
  std::shared_ptr<grpc::Channel> InProcessChannel();

  // Whether a backend has failed or the listener no longer answers. Health then says NOT_SERVING,
  // and only a new process can serve.
  bool failed() const;

  // Has the files of keys (keys-file, session-store-encryption-keys) read again, changed or not,
  // and returns at once. False where there is no such file.
  bool ReloadKeys();
  // Opens the file of the request log again, which may have been renamed. False where the log is
  // not a file.
  bool ReopenRequestLog();

  // Health turns NOT_SERVING, for good; requests are still taken. A balancer that looks at health
  // stops sending here before Drain refuses anything.
  void AnnounceDrain();

  // Health turns NOT_SERVING; new requests are refused (UNAVAILABLE), except closing, listing and
  // snapshots of sessions; running requests go on until `deadline`, and the rest end with
  // UNAVAILABLE. Returns true if all ended by themselves. Nothing is served afterwards. Calls
  // EndReplies, then Close.
  bool Drain(absl::Time deadline);
  bool EndReplies(absl::Time deadline);
  // Closes all connections and sends the last spans. Takes about two seconds, or longer where a
  // peer that never stops sending keeps one of gRPC's threads, for which this waits.
  void Close();

 private:
  Server() = default;
  // Null without session-store-encryption-keys.
  absl::StatusOr<std::shared_ptr<Sealer>> WatchSealKeys(const ServerConfig& config);
  absl::Status OpenRequestLog(const ServerConfig& config);
  absl::Status StartTracing(const ServerConfig& config);
  void WatchListener(const ServerConfig& config);
  absl::Status ServeMetrics(const ServerConfig& config);
  void LogServing(const ServerConfig& config) const;

  // Outlive their borrowers. Null: there is none.
  std::unique_ptr<Tracer> tracer_;
  std::unique_ptr<RequestLog> request_log_;
  ServedModels models_;
  std::shared_ptr<KeyRing> keys_;
  std::unique_ptr<FileWatch> key_watch_;  // null as keys_
  std::unique_ptr<FileWatch> seal_key_watch_;
  std::unique_ptr<GrpcServer> grpc_;
  std::unique_ptr<HealthWatch> health_watch_;
  std::unique_ptr<ListenerWatch> listener_watch_;  // null without a socket
  std::unique_ptr<ModelLoader> loader_;  // null without a listener for operators, as admin_
  std::unique_ptr<AdminServer> admin_;
  std::unique_ptr<MetricsServer> metrics_;  // null where it is not served; reads all of the above
};

}  // namespace rivulet
