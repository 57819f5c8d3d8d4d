// SPDX-License-Identifier: Apache-2.0
#include "server/model_loader.h"

#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"
#include "model/cache_type.h"
#include "model/hybrid_settings.h"
#include "model/slot_choice.h"
#include "server/health/health_watch.h"
#include "server/log.h"
#include "server/start/start_files.h"

namespace rivulet {
namespace {

absl::Status AboutModel(absl::StatusCode code, absl::string_view reason,
                        absl::string_view message) {
  ErrorDetail detail;
  detail.reason = std::string(reason);
  detail.field = "model";
  return MakeError(code, message, detail);
}

absl::Status Busy(const std::string& name, absl::string_view doing) {
  return AboutModel(absl::StatusCode::kAborted, "MODEL_BUSY",
                    absl::StrCat("model ", Quoted(name), " is being ", doing, " already"));
}

// An error in a directory is not about a field of the request, which has only a name.
absl::Status DirectoryFault(const absl::Status& status) {
  absl::StatusCode code = status.code();
  if (code == absl::StatusCode::kInvalidArgument || code == absl::StatusCode::kNotFound ||
      code == absl::StatusCode::kOutOfRange) {
    code = absl::StatusCode::kFailedPrecondition;
  }
  ErrorDetail detail = GetErrorDetail(status);
  detail.field.clear();
  return MakeError(code, status.message(), detail);
}

void LogSkippedTensors(const ModelHold& model) {
  const Model& served = model.engine()->model();
  std::set<std::string> groups;  // "mtp", "model.visual"
  int64_t count = 0;
  for (const std::string& name : served.tensors().names()) {
    const bool used = model.engine()->limits().drafts.guesses > 0 && absl::StartsWith(name, "mtp.");
    if (used || !IsSkippedTensor(served.config(), name)) continue;
    ++count;
    const std::vector<std::string> parts = absl::StrSplit(name, '.');
    groups.insert(parts[0] == "model" ? absl::StrCat(parts[0], ".", parts[1]) : parts[0]);
  }
  if (count == 0) return;
  Log(LogLevel::kInfo, "tensors_skipped",
      {{"model", model.name()}, {"count", count}, {"names", absl::StrJoin(groups, ".*, ") + ".*"}});
}

}  // namespace

void LogModel(const ModelHold& model) {
  const Engine& engine = *model.engine();
  const BackendLimits& limits = engine.limits();
  const auto slot_bytes = static_cast<int64_t>(limits.bytes_per_slot);
  Log(LogLevel::kInfo, "model",
      {{"model", model.name()},
       {"name_from", engine.model().name_source()},
       {"directory", engine.model().directory()},
       {"weights_sha256", engine.model().weights_sha256()},
       {"backend", model.description().summary().backend()},
       {"numerics_id", limits.numerics_id},
       {"plan", limits.plan},
       {"products", limits.products},
       {"weight_bytes", static_cast<int64_t>(limits.weight_bytes)},
       {"slots", int64_t{limits.num_slots}},
       {"slots_choice", limits.slots_choice},
       {"rows", int64_t{limits.max_rows}},
       {"head_rows", int64_t{limits.head_rows}},
       {"state_bytes_per_slot", slot_bytes},
       {"state_bytes_total", slot_bytes * limits.num_slots}});
  if (!limits.contexts.empty()) {
    Log(LogLevel::kInfo, "contexts",
        {{"model", model.name()},
         {"context", limits.context},
         {"kv_cache", CacheTypeName(limits.state.kept_type)},
         {"slots_by_context", SlotsByContextText(limits.contexts)}});
  }
  LogSkippedTensors(model);
  const auto* const encoder = std::get_if<EncoderConfig>(&engine.model().config().network);
  if (encoder != nullptr && encoder->redrawn_elsewhere) {
    Log(LogLevel::kInfo, "random_features",
        {{"model", model.name()},
         {"reason",
          "deterministic_eval is false: the published code draws new random features in each pass; "
          "this server always uses those of the file"}});
  }
  const std::vector<std::string>& ignored = engine.model().text().ignored;
  if (ignored.empty()) return;
  Log(LogLevel::kWarning, "tokenizer_settings",
      {{"model", model.name()},
       {"settings", absl::StrJoin(ignored, ", ")},
       {"reason",
        "a training run left them in tokenizer.json; a prompt is neither cut nor filled "
        "up, as transformers does it"}});
}

ModelLoader::ModelLoader(ModelLoaderOptions options, Start start, ServedModels* models,
                         HealthWatch* health)
    : options_(std::move(options)), start_(std::move(start)), models_(models), health_(health) {}

absl::Status ModelLoader::CheckOpen() const {
  if (!closed_) return absl::OkStatus();
  ErrorDetail detail;
  detail.reason = "DRAINING";
  return MakeError(absl::StatusCode::kUnavailable, "The server is shutting down.", detail);
}

absl::StatusOr<v1::ModelSummary> ModelLoader::Load(const std::string& name) {
  RIVULET_RETURN_IF_ERROR(BeginLoad(name));
  absl::StatusOr<ServedModel> started = LoadAndStart(name);
  absl::Status status = started.status();
  ModelHold model;
  {
    MutexLock lock(&mutex_);
    busy_.erase(name);
    if (status.ok()) status = CheckOpen();
    if (status.ok()) {
      models_->Add(*std::move(started));
      model = *models_->Find(name);
    }
  }
  if (!status.ok()) {
    Log(LogLevel::kError, "model_load_failed",
        {{"model", name}, {"reason", std::string(status.message())}});
    return status;
  }
  health_->Look();
  LogModel(model);
  return model.description().summary();
}

absl::Status ModelLoader::BeginLoad(const std::string& name) {
  MutexLock lock(&mutex_);
  RIVULET_RETURN_IF_ERROR(CheckOpen());
  if (const auto found = busy_.find(name); found != busy_.end()) {
    return Busy(name, found->second == nullptr ? "loaded" : "unloaded");
  }
  if (models_->Find(name).ok()) {
    return AboutModel(absl::StatusCode::kAlreadyExists, "MODEL_ALREADY_LOADED",
                      absl::StrCat("model ", Quoted(name), " is loaded; unload it first"));
  }
  busy_[name] = nullptr;
  return absl::OkStatus();
}

absl::StatusOr<ServedModel> ModelLoader::LoadAndStart(const std::string& name) const {
  RIVULET_ASSIGN_OR_RETURN(const std::string directory, DirectoryOf(name));
  absl::StatusOr<std::shared_ptr<const Model>> model = Model::StartLoad(directory, name);
  if (!model.ok()) return DirectoryFault(model.status());
  // For a directory of --model the operator decides on the name. In a repository, a name in
  // config.json must be the name of the directory.
  const bool in_repository = options_.directories.count(name) == 0;
  if (const std::string& held = (*model)->own_name();
      in_repository && !held.empty() && held != name) {
    return AboutModel(
        absl::StatusCode::kFailedPrecondition, "MODEL_NAME_DIFFERS",
        absl::StrCat(directory, " holds a model named ", Quoted(held), ", not ", Quoted(name)));
  }
  absl::StatusOr<ServedModel> started = start_(*model);
  if (const absl::Status checked = (*model)->CheckWeights(); !checked.ok()) {
    return DirectoryFault(checked);  // names the directory
  }
  if (!started.ok()) return DirectoryFault(Annotate(started.status(), directory));
  return started;
}

absl::StatusOr<std::string> ModelLoader::DirectoryOf(const std::string& name) const {
  if (const auto found = options_.directories.find(name); found != options_.directories.end()) {
    return found->second;
  }
  std::string found = FindInRepositories(options_.repositories, name);
  if (!found.empty()) return found;
  return AboutModel(
      absl::StatusCode::kNotFound, "MODEL_NOT_IN_REPOSITORY",
      absl::StrCat("model ", Quoted(name),
                   " is none that this server was started "
                   "with, and in none of its model repositories: ",
                   options_.repositories.empty() ? "it has none"
                                                 : absl::StrJoin(options_.repositories, ", ")));
}

absl::StatusOr<ModelControl::Unloaded> ModelLoader::Unload(
    const std::string& name, std::optional<absl::Duration> drain_timeout) {
  const absl::Time deadline = absl::Now() + drain_timeout.value_or(options_.drain_timeout);
  bool is_new = false;
  ModelHold model;
  RIVULET_ASSIGN_OR_RETURN(const std::shared_ptr<Unloading> unloading,
                           BeginUnload(name, &is_new, &model));
  if (is_new) health_->Look();
  const bool all_ended = !model || model.engine()->Drain(deadline);
  if (is_new) {
    FinishUnload(name, all_ended, std::move(model), unloading.get());
    return unloading->result;
  }
  model.Release();
  MutexLock lock(&mutex_);
  while (!unloading->done) unloading->ended.Wait(&mutex_);
  return unloading->result;
}

absl::StatusOr<std::shared_ptr<ModelLoader::Unloading>> ModelLoader::BeginUnload(
    const std::string& name, bool* is_new, ModelHold* model) {
  MutexLock lock(&mutex_);
  RIVULET_RETURN_IF_ERROR(CheckOpen());
  if (const auto found = busy_.find(name); found != busy_.end()) {
    if (found->second == nullptr) return Busy(name, "loaded");
    *model = found->second->model;
    return found->second;
  }
  *model = models_->BeginUnload(name);
  if (!*model) return models_->Find(name).status();
  *is_new = true;
  auto unloading = std::make_shared<Unloading>();
  unloading->model = *model;
  busy_[name] = unloading;
  return unloading;
}

void ModelLoader::FinishUnload(const std::string& name, bool all_ended, ModelHold model,
                               Unloading* unloading) {
  const Unloaded result{all_ended, model.engine()->GetLoad().client_sessions};
  model.Release();
  {
    MutexLock lock(&mutex_);
    unloading->model.Release();
  }
  models_->FinishUnload(name);
  Log(LogLevel::kInfo, "model_unloaded",
      {{"model", name},
       {"all_ended", result.all_ended},
       {"sessions_closed", int64_t{result.sessions_closed}}});
  MutexLock lock(&mutex_);
  busy_.erase(name);
  unloading->result = result;
  unloading->done = true;
  unloading->ended.NotifyAll();
}

void ModelLoader::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
}

}  // namespace rivulet
