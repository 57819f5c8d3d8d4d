// SPDX-License-Identifier: Apache-2.0
// ModelLoader: loads and unloads models while the server runs. A caller gives only a name; the
// server looks for it in directories that are fixed at its start.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "model/model.h"
#include "server/base/mutex.h"
#include "server/grpc/admin/admin_service.h"
#include "server/grpc/calls/served_models.h"

namespace rivulet {

class HealthWatch;

// Logs the event `model`: the model is served, and with which settings.
void LogModel(const ModelHold& model);

struct ModelLoaderOptions {
  std::map<std::string, std::string> directories;  // of single models, by the model's name
  std::vector<std::string> repositories;  // directories of model directories, searched next
  absl::Duration drain_timeout;           // if the caller gives none
};

// At most one load or unload of a name runs at a time. Thread: any.
class ModelLoader final : public ModelControl {
 public:
  // Builds backend and engine of a model, on the thread that loads it.
  using Start = std::function<absl::StatusOr<ServedModel>(std::shared_ptr<const Model>)>;

  // `models` and `health` are borrowed and must outlive this object.
  ModelLoader(ModelLoaderOptions options, Start start, ServedModels* models, HealthWatch* health);

  absl::StatusOr<v1::ModelSummary> Load(const std::string& name) override;
  absl::StatusOr<Unloaded> Unload(const std::string& name,
                                  std::optional<absl::Duration> drain_timeout) override;

  // From now on every call is refused (DRAINING), and so is a running load, once its model is
  // loaded. No model is added after Close has returned.
  void Close();

 private:
  // A running unload, shared by all callers that wait for it.
  struct Unloading {
    ModelHold model;  // until it is drained
    bool done = false;
    Unloaded result;
    CondVar ended;
  };

  absl::Status BeginLoad(const std::string& name);
  absl::StatusOr<ServedModel> LoadAndStart(const std::string& name) const;
  absl::StatusOr<std::string> DirectoryOf(const std::string& name) const;
  absl::Status CheckOpen() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The running unload of `name`, or a new unload (then *is_new).
  absl::StatusOr<std::shared_ptr<Unloading>> BeginUnload(const std::string& name, bool* is_new,
                                                         ModelHold* model);
  void FinishUnload(const std::string& name, bool all_ended, ModelHold model, Unloading* unloading);

  const ModelLoaderOptions options_;
  const Start start_;
  ServedModels* const models_;
  HealthWatch* const health_;
  Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  // Running unloads, by the model's name; null: a running load.
  std::map<std::string, std::shared_ptr<Unloading>> busy_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rivulet
