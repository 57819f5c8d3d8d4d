// SPDX-License-Identifier: Apache-2.0
// MetricsServer: answers GET /metrics over HTTP with the metrics of collector.h, in the text format
// of Prometheus.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/grpc/calls/served_models.h"
#include "server/grpc/calls/server_calls.h"

namespace prometheus {
class Collectable;
class Exposer;
}  // namespace prometheus

namespace rivulet {

// Has 16 own threads for connections, and a thread that accepts them. Thread: any.
class MetricsServer {
 public:
  // Answers once this has returned. `address`: the setting metrics-listen. `models` and `calls` are
  // borrowed and outlive it. Errors: INVALID_ARGUMENT (no HOST:PORT), UNAVAILABLE
  // (ADDRESS_UNAVAILABLE).
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Create(const std::string& address,
                                                               const ServedModels* models,
                                                               const ServerCalls* calls);
  // Waits for running scrapes.
  ~MetricsServer();

  // The port that was bound.
  int port() const;

 private:
  MetricsServer(const ServedModels* models, const ServerCalls* calls);

  const std::shared_ptr<prometheus::Collectable> collectable_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace rivulet
