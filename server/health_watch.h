// SPDX-License-Identifier: Apache-2.0
// HealthWatch: keeps grpc.health.v1 truthful. A model whose engine has failed turns NOT_SERVING,
// and "" with it.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/engine/engine.h"

namespace rivulet {

class GrpcServer;

// Looks at every engine once a period, on a thread of its own, from construction to destruction.
class HealthWatch {
 public:
  // Engines and server are borrowed and must outlive this object. All are taken to be SERVING now.
  HealthWatch(std::vector<const Engine*> engines, GrpcServer* server, absl::Duration period);
  ~HealthWatch();

  // True once an engine has been seen to have failed: only a new process can serve its model.
  // Thread: any.
  bool failed() const { return failed_; }

 private:
  void Run();
  void LookOnce();

  const std::vector<const Engine*> engines_;
  GrpcServer* const server_;
  const absl::Duration period_;
  std::vector<bool> serving_;  // [engines], of the watching thread
  std::atomic<bool> failed_ = false;
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: everything above exists when it starts
};

}  // namespace rivulet
