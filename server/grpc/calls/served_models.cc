// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/calls/served_models.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"
#include "server/grpc/wire/convert.h"

namespace rivulet {
namespace {

bool IsAmong(const std::string& name, const ModelNames* only) {
  return only == nullptr || only->find(name) != only->end();
}

}  // namespace

ModelHold::ModelHold(std::shared_ptr<Entry> entry) : entry_(std::move(entry)) {
  entry_->holds.Enter();
}

ModelHold::ModelHold(const ModelHold& other) : entry_(other.entry_) {
  if (entry_ != nullptr) entry_->holds.Enter();
}

ModelHold& ModelHold::operator=(const ModelHold& other) {
  if (this != &other) *this = ModelHold(other);
  return *this;
}

ModelHold& ModelHold::operator=(ModelHold&& other) noexcept {
  if (this != &other) {
    Release();
    entry_ = std::move(other.entry_);
  }
  return *this;
}

void ModelHold::Release() {
  // The engine may end as soon as this hold has left; the entry does not.
  if (const std::shared_ptr<Entry> entry = std::move(entry_)) entry->holds.Leave();
}

ServedModels::ServedModels(std::vector<ServedModel> models) {
  for (ServedModel& model : models) Add(std::move(model));
}

std::string ServedModels::Names(const ModelNames* only) const {
  std::vector<std::string> names;
  for (const auto& entry : entries_) {
    const std::string& name = entry->description.summary().name();
    if (!entry->unloading && IsAmong(name, only)) names.push_back(Quoted(name));
  }
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

ServedModels::Entries::const_iterator ServedModels::Position(absl::string_view name) const {
  return std::find_if(entries_.begin(), entries_.end(), [name](const auto& entry) {
    return name == entry->description.summary().name();
  });
}

absl::StatusOr<ModelHold> ServedModels::Find(absl::string_view name, const ModelNames* only) const {
  MutexLock lock(&mutex_);
  ErrorDetail detail;
  detail.field = "model";
  if (name.empty()) {
    const auto serves = [only](const auto& entry) {
      return !entry->unloading && IsAmong(entry->description.summary().name(), only);
    };
    const auto first = std::find_if(entries_.begin(), entries_.end(), serves);
    if (std::count_if(entries_.begin(), entries_.end(), serves) == 1) return ModelHold(*first);
    return InvalidField("MODEL_NAME_MISSING", detail.field,
                        absl::StrCat("model is empty, which is allowed only where one model is "
                                     "served; this server has ",
                                     Names(only)));
  }
  const auto found = Position(name);
  if (found == entries_.end() || !IsAmong(std::string(name), only)) {
    detail.reason = "MODEL_NOT_FOUND";
    return MakeError(
        absl::StatusCode::kNotFound,
        absl::StrCat("model ", Quoted(name), " is not served here; this server has ", Names(only)),
        detail);
  }
  if ((*found)->unloading) {
    detail.reason = "MODEL_UNLOADING";
    return MakeError(absl::StatusCode::kUnavailable,
                     absl::StrCat("model ", Quoted(name), " is being unloaded here"), detail);
  }
  return ModelHold(*found);
}

std::vector<ModelHold> ServedModels::served(const ModelNames* only) const {
  MutexLock lock(&mutex_);
  std::vector<ModelHold> holds;
  for (const auto& entry : entries_) {
    const bool exists = IsAmong(entry->description.summary().name(), only);
    if (exists && !entry->unloading) holds.push_back(ModelHold(entry));
  }
  return holds;
}

std::vector<ModelHold> ServedModels::all(const ModelNames* only) const {
  MutexLock lock(&mutex_);
  std::vector<ModelHold> holds;
  for (const auto& entry : entries_) {
    if (IsAmong(entry->description.summary().name(), only)) holds.push_back(ModelHold(entry));
  }
  return holds;
}

void ServedModels::Add(ServedModel model) {
  auto entry = std::make_shared<ModelHold::Entry>();
  entry->description = DescribeModel(*model.engine, model.backend);
  entry->engine = std::move(model.engine);
  MutexLock lock(&mutex_);
  entries_.push_back(std::move(entry));
}

ModelHold ServedModels::BeginUnload(absl::string_view name) {
  MutexLock lock(&mutex_);
  const auto found = Position(name);
  if (found == entries_.end() || (*found)->unloading) return ModelHold();
  (*found)->unloading = true;
  return ModelHold(*found);
}

void ServedModels::FinishUnload(absl::string_view name) {
  std::shared_ptr<ModelHold::Entry> entry;
  {
    MutexLock lock(&mutex_);
    const auto found = Position(name);
    entry = *found;
    entries_.erase(found);
  }
  entry->holds.WaitUntilNone(absl::InfiniteFuture());
  entry->engine.reset();
}

}  // namespace rivulet
