// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/metrics_server.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <unistd.h>

#include <exception>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "server/config/server_config.h"
#include "server/grpc/connections/listening_sockets.h"
#include "server/metrics/collector.h"

namespace rivulet {
namespace {

constexpr char kSetting[] = "metrics-listen";
// Each connection holds one of the threads, an idle connection for at most kRequestTimeoutMs.
constexpr char kHttpThreads[] = "16", kRequestTimeoutMs[] = "2000";

class Collector final : public prometheus::Collectable {
 public:
  Collector(const ServedModels* models, const ServerCalls* calls)
      : models_(models), calls_(calls) {}
  std::vector<prometheus::MetricFamily> Collect() const override {
    return CollectMetrics(*models_, *calls_);
  }

 private:
  const ServedModels* const models_;
  const ServerCalls* const calls_;
};

absl::Status CannotListen(absl::string_view address, absl::string_view why) {
  ErrorDetail detail;
  detail.reason = "ADDRESS_UNAVAILABLE";
  detail.field = kSetting;
  return MakeError(
      absl::StatusCode::kUnavailable,
      absl::StrCat("cannot listen on ", address, ", the value of ", kSetting, ": ", why), detail);
}

// Listens on the address for a moment, because the library that listens afterwards gives no reason
// for a failure.
absl::Status TryAddress(const std::string& address) {
  RIVULET_ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(address, kSetting));
  const auto sockets = ListenOn(parsed, absl::Seconds(1));
  if (!sockets.ok()) return CannotListen(address, sockets.status().message());
  for (const ListeningSocket& socket : sockets->sockets) close(socket.fd);
  return absl::OkStatus();
}

}  // namespace

MetricsServer::MetricsServer(const ServedModels* models, const ServerCalls* calls)
    : collectable_(std::make_shared<Collector>(models, calls)) {}

MetricsServer::~MetricsServer() = default;

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Create(const std::string& address,
                                                                     const ServedModels* models,
                                                                     const ServerCalls* calls) {
  RIVULET_RETURN_IF_ERROR(TryAddress(address));
  std::unique_ptr<MetricsServer> server(new MetricsServer(models, calls));
  try {
    server->exposer_ = std::make_unique<prometheus::Exposer>(
        std::vector<std::string>{"listening_ports", address, "num_threads", kHttpThreads,
                                 "request_timeout_ms", kRequestTimeoutMs});
  } catch (const std::exception& error) {
    return CannotListen(address, error.what());
  }
  server->exposer_->RegisterCollectable(server->collectable_);
  return server;
}

int MetricsServer::port() const {
  const std::vector<int> ports = exposer_->GetListeningPorts();
  return ports.empty() ? 0 : ports.front();
}

}  // namespace rivulet
