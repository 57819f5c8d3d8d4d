// SPDX-License-Identifier: Apache-2.0
// The models of one server, by name. They come and go while it runs. Whoever uses a model holds it;
// the engine ends once its model was removed and nobody holds it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "rivulet/v1/inference.pb.h"
#include "server/base/mutex.h"
#include "server/engine/engine.h"
#include "server/keys/api_key.h"

namespace rivulet {

// Counts calls that have begun and not ended. A request ends when its last byte was sent, so a
// drain waits for slow readers, too. Thread: any.
class ActiveCalls {
 public:
  void Enter() {
    MutexLock lock(&mutex_);
    ++count_;
  }
  void Leave() {
    MutexLock lock(&mutex_);
    if (--count_ == 0) none_.NotifyAll();
  }
  // False if calls are still active at `deadline`.
  bool WaitUntilNone(absl::Time deadline) {
    MutexLock lock(&mutex_);
    while (count_ > 0) {
      const absl::Duration left = deadline - absl::Now();
      if (left <= absl::ZeroDuration()) return false;
      none_.WaitFor(&mutex_, left);
    }
    return true;
  }

 private:
  Mutex mutex_;
  CondVar none_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A model to serve: its engine, which only tests share, and "cpu" or "cuda".
struct ServedModel {
  std::shared_ptr<Engine> engine;
  std::string backend;
};

// A model in use: its engine lives while this is held, and an unload waits for that. So hold the
// model from before the engine gets a request until the engine's last notification, and never while
// waiting for a client. Thread: one at a time.
class ModelHold {
 public:
  ModelHold() = default;  // holds nothing
  ModelHold(const ModelHold& other);
  ModelHold& operator=(const ModelHold& other);
  ModelHold(ModelHold&& other) noexcept = default;
  ModelHold& operator=(ModelHold&& other) noexcept;
  ~ModelHold() { Release(); }
  // Holds nothing afterwards. May be called on a thread of the engine, too.
  void Release();

  explicit operator bool() const { return entry_ != nullptr; }
  // The others REQUIRE: something is held.
  Engine* engine() const { return entry_->engine.get(); }
  const v1::GetModelReply& description() const { return entry_->description; }
  const std::string& name() const { return description().summary().name(); }

 private:
  friend class ServedModels;
  struct Entry {
    std::shared_ptr<Engine> engine;
    v1::GetModelReply description;
    bool unloading = false;  // guarded by ServedModels::mutex_
    ActiveCalls holds;
  };
  explicit ModelHold(std::shared_ptr<Entry> entry);

  std::shared_ptr<Entry> entry_;
};

// A call's hold on its model from its handler to the engine's last notification. gRPC may cancel
// the call at any time, also before the engine has the request, so this has a lock, unlike a
// ModelHold, which is copied. Thread: Cancel any; the others one at a time.
class CallModel {
 public:
  CallModel() = default;
  explicit CallModel(ModelHold hold) : hold_(std::move(hold)) {}

  // REQUIRES: nothing is held.
  void Hold(ModelHold hold) {
    MutexLock lock(&mutex_);
    hold_ = std::move(hold);
  }

  // REQUIRES: something is held, and Release has not been called.
  Engine* engine() {
    MutexLock lock(&mutex_);
    return hold_.engine();
  }
  // The engine has the request, and may already have made its last notification.
  void SetId(RequestId id) {
    MutexLock lock(&mutex_);
    id_ = id;
    if (cancelled_ && hold_) hold_.engine()->Cancel(id_);
  }
  // Makes the engine end the request, as soon as the engine has it. No effect after Release.
  void Cancel() {
    MutexLock lock(&mutex_);
    cancelled_ = true;
    if (hold_ && id_ != 0) hold_.engine()->Cancel(id_);
  }
  // The engine has made its last notification: lets go of the model.
  void Release() {
    MutexLock lock(&mutex_);
    hold_.Release();
  }

 private:
  Mutex mutex_;
  ModelHold hold_ ABSL_GUARDED_BY(mutex_);
  RequestId id_ ABSL_GUARDED_BY(mutex_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

// Thread: any.
class ServedModels {
 public:
  ServedModels() = default;
  // Names are distinct.
  explicit ServedModels(std::vector<ServedModel> models);

  // The model called `name`. Errors: INVALID_ARGUMENT ("", unless exactly one model is served),
  // NOT_FOUND, UNAVAILABLE (MODEL_UNLOADING). `only`, here and in the next two: other models do not
  // exist for the caller, and errors do not name them; null: all exist.
  absl::StatusOr<ModelHold> Find(absl::string_view name, const ModelNames* only = nullptr) const;
  // The models that Find finds, in the order in which they were added.
  std::vector<ModelHold> served(const ModelNames* only = nullptr) const;
  // The served models, and those that are being unloaded.
  std::vector<ModelHold> all(const ModelNames* only = nullptr) const;

  // Find finds `model` from now on. REQUIRES: no model of this name is among all().
  void Add(ServedModel model);
  // Find no longer finds the model; its engine continues. Returns the model, or a hold on nothing
  // if Find would not find it.
  ModelHold BeginUnload(absl::string_view name);
  // Removes the model from all(), waits until nobody holds it and ends its engine. REQUIRES:
  // BeginUnload has returned it and its engine is drained, so that all holds will end.
  void FinishUnload(absl::string_view name);

 private:
  using Entries = std::vector<std::shared_ptr<ModelHold::Entry>>;
  Entries::const_iterator Position(absl::string_view name) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Names(const ModelNames* only) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rivulet
