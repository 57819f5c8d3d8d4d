// SPDX-License-Identifier: Apache-2.0
#include "server/health_watch.h"

#include <algorithm>
#include <string>
#include <utility>

#include "server/grpc/grpc_server.h"
#include "server/log.h"

namespace rivulet {

HealthWatch::HealthWatch(std::vector<const Engine*> engines, GrpcServer* server,
                         absl::Duration period)
    : engines_(std::move(engines)),
      server_(server),
      period_(period),
      serving_(engines_.size(), true),
      thread_([this] { Run(); }) {}

HealthWatch::~HealthWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  thread_.join();
}

void HealthWatch::Run() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stop_), period_)) return;
    }
    LookOnce();
  }
}

void HealthWatch::LookOnce() {
  for (size_t i = 0; i < engines_.size(); ++i) {
    const absl::Status health = engines_[i]->GetLoad().health;
    if (health.ok() == serving_[i]) continue;
    serving_[i] = health.ok();
    const std::string& name = engines_[i]->model().config().name;
    server_->SetServing(name, serving_[i]);
    server_->SetServing("", std::find(serving_.begin(), serving_.end(), false) == serving_.end());
    Log(health.ok() ? LogLevel::kInfo : LogLevel::kError, "health",
        {{"model", name}, {"serving", health.ok()}, {"reason", std::string(health.message())}});
    if (!health.ok()) failed_ = true;  // last: who sees it finds health NOT_SERVING
  }
}

}  // namespace rivulet
