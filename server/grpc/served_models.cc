// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/served_models.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/base/error.h"
#include "model/strict_json.h"
#include "server/grpc/convert.h"

namespace rivulet {

ServedModels::ServedModels(const std::vector<ServedModel>& models) {
  for (const ServedModel& model : models) {
    models_.push_back({model.engine, DescribeModel(*model.engine, model.backend)});
  }
}

std::string ServedModels::Names() const {
  return absl::StrJoin(models_, ", ", [](std::string* out, const Entry& entry) {
    absl::StrAppend(out, "\"", entry.name(), "\"");
  });
}

absl::StatusOr<const ServedModels::Entry*> ServedModels::Find(absl::string_view name) const {
  if (name.empty()) {
    if (models_.size() == 1) return &models_.front();
    return InvalidField("MODEL_NAME_MISSING", "model",
                        absl::StrCat("model is empty, which is allowed only where one model is "
                                     "served; this server has ",
                                     Names()));
  }
  for (const Entry& entry : models_) {
    if (name == entry.name()) return &entry;
  }
  ErrorDetail detail;
  detail.reason = "MODEL_NOT_FOUND";
  detail.field = "model";
  return MakeError(
      absl::StatusCode::kNotFound,
      absl::StrCat("model ", Quoted(name), " is not served here; this server has ", Names()),
      detail);
}

}  // namespace rivulet
