// SPDX-License-Identifier: Apache-2.0
// FakeEngine: an Engine that records its calls; the test decides its answers and their time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "server/engine/engine.h"
#include "server/grpc/calls/served_models.h"
#include "tests/unit/server/fake_drain.h"

namespace rivulet::testing {

inline ReplyDelta Tokens(int64_t first_position, std::vector<int32_t> tokens, int sample = 0) {
  ReplyDelta delta;
  delta.sample_index = sample;
  delta.first_position = first_position;
  delta.tokens = std::move(tokens);
  return delta;
}

// Thread: the test calls Emit and End from one thread, which plays the emitter.
class FakeEngine final : public Engine {
 public:
  explicit FakeEngine(std::shared_ptr<const Model> model) : model_(std::move(model)) {
    limits_.num_slots = 8;
    limits_.max_rows = 8;
    limits_.bytes_per_slot = 4096;
    limits_.numerics_id = "fake-1";
    limits_.plan = "as it goes";
    limits_.products = "by hand";
  }

  const Model& model() const override { return *model_; }
  const BackendLimits& limits() const override { return limits_; }
  const EngineOptions& options() const override { return options_; }

  absl::StatusOr<std::shared_ptr<Reply>> Generate(GenerateSpec spec,
                                                  ReplyListener* listener) override {
    if (before_call) before_call();
    absl::MutexLock lock(&mutex_);
    if (!refuse_.ok()) return refuse_;
    const RequestId id = next_id_++;
    auto reply = std::make_shared<Reply>();
    last_spec_ = std::move(spec);
    running_[id] = {reply, listener};
    last_id_ = id;
    reply->SetFingerprint(id + 1000);
    reply->SetId(id);
    return reply;
  }

  absl::StatusOr<RequestId> Score(ScoreSpec spec, ScoreDone done) override {
    if (before_call) before_call();
    absl::MutexLock lock(&mutex_);
    if (!refuse_.ok()) return refuse_;
    last_score_ = std::move(spec);
    last_id_ = next_id_++;
    scores_[last_id_] = std::move(done);
    return last_id_;
  }

  absl::StatusOr<RequestId> Append(AppendSpec spec, ScoreDone done) override {
    absl::MutexLock lock(&mutex_);
    if (!refuse_.ok()) return refuse_;
    last_append_ = std::move(spec);
    last_id_ = next_id_++;
    scores_[last_id_] = std::move(done);
    return last_id_;
  }
  absl::StatusOr<RequestId> Call(SessionCommand call) override {
    absl::MutexLock lock(&mutex_);
    if (!refuse_.ok()) return refuse_;
    last_call_ = std::move(call);
    last_id_ = next_id_++;
    return last_id_;
  }

  void Cancel(RequestId id) override {
    absl::MutexLock lock(&mutex_);
    cancelled_.push_back(id);
  }

  EngineLoad GetLoad() const override {
    if (before_call) before_call();
    absl::MutexLock lock(&mutex_);
    EngineLoad load = base_load_;
    load.slots = limits_.num_slots;
    load.slots_used = static_cast<int>(running_.size());
    load.client_sessions = drain_.client_sessions();
    load.health = health_;
    return load;
  }

  const EngineMeters& meters() const override { return meters_; }
  EngineMeters& mutable_meters() { return meters_; }
  BackendLimits& mutable_limits() { return limits_; }
  EngineOptions& mutable_options() { return options_; }
  // The result of GetLoad for everything that this engine does not do.
  void SetLoad(EngineLoad load) {
    absl::MutexLock lock(&mutex_);
    base_load_ = std::move(load);
  }

  bool Drain(absl::Time deadline) override { return drain_.Run(deadline); }
  FakeDrain& drain() { return drain_; }
  // Called at the beginning of each Generate, Score and GetLoad. To be set before the first of
  // these calls.
  std::function<void()> before_call;

  // The immediate answer to the next requests, unless OK.
  void Refuse(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    refuse_ = std::move(status);
  }

  void SetHealth(absl::Status health) {
    absl::MutexLock lock(&mutex_);
    health_ = std::move(health);
  }

  // Waits until a request has come, and returns the id of the latest request.
  RequestId WaitForRequest(RequestId after = 0) {
    absl::MutexLock lock(&mutex_);
    const auto arrived = [this, after]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return last_id_ > after; };
    mutex_.Await(absl::Condition(&arrived));
    return last_id_;
  }
  // Waits until this number of requests has been cancelled.
  void WaitForCancel(size_t count = 1) {
    absl::MutexLock lock(&mutex_);
    const auto cancelled = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return cancelled_.size() >= count;
    };
    mutex_.Await(absl::Condition(&cancelled));
  }
  GenerateSpec last_spec() const {
    absl::MutexLock lock(&mutex_);
    return last_spec_;
  }
  ScoreSpec last_score() const {
    absl::MutexLock lock(&mutex_);
    return last_score_;
  }
  AppendSpec last_append() const {
    absl::MutexLock lock(&mutex_);
    return last_append_;
  }
  // The test calls its `done`; before that it may call `act` with its own table.
  SessionCommand last_call() const {
    absl::MutexLock lock(&mutex_);
    return last_call_;
  }

  void Emit(RequestId id, ReplyDelta delta) {
    Running running = Get(id);
    running.reply->Append(std::move(delta));
    running.listener->OnReady();
  }
  // Waits until the listener has taken everything that was emitted.
  void WaitUntilTaken(RequestId id) {
    while (Get(id).reply->pending_bytes() > 0) absl::SleepFor(absl::Milliseconds(1));
  }
  // Ends the reply; its listener is not used afterwards.
  void End(RequestId id, absl::Status status, Usage usage = {}) {
    Running running = Get(id);
    {
      absl::MutexLock lock(&mutex_);
      running_.erase(id);
    }
    running.reply->Finish({std::move(status), usage});
    running.listener->OnReady();
  }
  // A Score, or an Append.
  void EndScore(RequestId id, absl::StatusOr<ScoreResult> result) {
    ScoreDone done;
    {
      absl::MutexLock lock(&mutex_);
      done = std::move(scores_[id]);
      scores_.erase(id);
    }
    done(std::move(result));
  }

 private:
  struct Running {
    std::shared_ptr<Reply> reply;
    ReplyListener* listener = nullptr;
  };
  Running Get(RequestId id) {
    absl::MutexLock lock(&mutex_);
    return running_.at(id);
  }

  const std::shared_ptr<const Model> model_;
  BackendLimits limits_;
  EngineOptions options_;
  FakeDrain drain_;
  EngineMeters meters_;
  mutable absl::Mutex mutex_;
  absl::Status refuse_ ABSL_GUARDED_BY(mutex_);
  EngineLoad base_load_ ABSL_GUARDED_BY(mutex_);
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
  RequestId next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  RequestId last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  GenerateSpec last_spec_ ABSL_GUARDED_BY(mutex_);
  ScoreSpec last_score_ ABSL_GUARDED_BY(mutex_);
  AppendSpec last_append_ ABSL_GUARDED_BY(mutex_);
  SessionCommand last_call_ ABSL_GUARDED_BY(mutex_);
  std::map<RequestId, Running> running_ ABSL_GUARDED_BY(mutex_);
  std::map<RequestId, ScoreDone> scores_ ABSL_GUARDED_BY(mutex_);
  std::vector<RequestId> cancelled_ ABSL_GUARDED_BY(mutex_);
};

// Wraps an engine that the test keeps, for ServedModels.
inline ServedModel Serve(FakeEngine* engine) {
  return {std::shared_ptr<Engine>(std::shared_ptr<Engine>(), engine), "cpu"};
}

}  // namespace rivulet::testing
