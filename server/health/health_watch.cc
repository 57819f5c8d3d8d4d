// SPDX-License-Identifier: Apache-2.0
#include "server/health/health_watch.h"

#include <utility>

#include "model/base/thread.h"
#include "server/grpc/grpc_server.h"
#include "server/log.h"

namespace rivulet {

HealthWatch::HealthWatch(const ServedModels* models, GrpcServer* server, absl::Duration period)
    : models_(models), server_(server), period_(period) {
  for (const ModelHold& model : models->served()) serving_[model.name()] = true;
  any_serving_ = !serving_.empty();
  thread_ = std::thread([this] { Run(); });
}

HealthWatch::~HealthWatch() {
  stop_.Notify();
  thread_.join();
}

void HealthWatch::Run() {
  NameThread("health-watch");
  while (!stop_.WaitForNotificationWithTimeout(period_)) {
    Look();
  }
}

void HealthWatch::Look() {
  MutexLock lock(&look_mutex_);
  std::map<std::string, absl::Status> found;
  for (const ModelHold& model : models_->served()) {
    const EngineLoad load = model.engine()->GetLoad();
    found[model.name()] = load.health;
    if (!load.state_file_error.empty() && file_errors_.insert(model.name()).second) {
      Log(LogLevel::kWarning, "state_files",
          {{"model", model.name()}, {"first_error", load.state_file_error}});
    }
  }
  bool some_failed = false;
  for (const auto& [name, health] : found) {
    some_failed = some_failed || !health.ok();
    Set(name, health.ok(), std::string(health.message()));
  }
  for (const auto& [name, serving] : serving_) {
    if (serving && !found.contains(name)) Set(name, false, "unloaded");
  }
  // Sets only changed values, because each call notifies all watchers.
  const bool any_serving = !found.empty() && !some_failed;
  if (std::exchange(any_serving_, any_serving) != any_serving) {
    server_->SetServing("", any_serving);
  }
  if (some_failed) failed_ = true;  // last: whoever sees it finds health NOT_SERVING
}

void HealthWatch::Set(const std::string& name, bool serving, const std::string& reason) {
  const auto [entry, is_new] = serving_.try_emplace(name, serving);
  if (!is_new && std::exchange(entry->second, serving) == serving) return;
  server_->SetServing(name, serving);
  const bool as_wanted = serving || reason == "unloaded";
  Log(as_wanted ? LogLevel::kInfo : LogLevel::kError, "health",
      {{"model", name}, {"serving", serving}, {"reason", reason}});
}

}  // namespace rivulet
