// SPDX-License-Identifier: Apache-2.0
// HealthWatch: keeps grpc.health.v1 truthful. A model is SERVING while it is served and its engine
// has not failed; "" is SERVING while at least one model is served and none has failed.
#pragma once

#include <atomic>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "server/base/mutex.h"
#include "server/grpc/calls/served_models.h"

namespace rivulet {

class GrpcServer;

// Checks every model once per period, on a thread of its own, from construction to destruction.
class HealthWatch {
 public:
  // Models and server are borrowed and must outlive this object. The models that are served now are
  // taken to be SERVING.
  HealthWatch(const ServedModels* models, GrpcServer* server, absl::Duration period);
  ~HealthWatch();

  // Checks now: when this returns, health has the models that are served now. Thread: any.
  void Look();

  // Whether an engine has failed: only a new process can serve its model.
  // Thread: any.
  bool failed() const { return failed_; }

 private:
  void Run();
  void Set(const std::string& name, bool serving, const std::string& reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(look_mutex_);

  const ServedModels* const models_;
  GrpcServer* const server_;
  const absl::Duration period_;
  std::atomic<bool> failed_ = false;
  Mutex look_mutex_;
  std::map<std::string, bool> serving_ ABSL_GUARDED_BY(look_mutex_);  // by name, all ever served
  bool any_serving_ ABSL_GUARDED_BY(look_mutex_);                     // the status of ""
  std::set<std::string> file_errors_ ABSL_GUARDED_BY(look_mutex_);    // models that had one: logged
  absl::Notification stop_;
  std::thread thread_;  // last: everything above exists when it starts
};

}  // namespace rivulet
