// SPDX-License-Identifier: Apache-2.0
// The models of one server, found by name.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rivulet/v1/inference.pb.h"
#include "server/engine/engine.h"

namespace rivulet {

// A model to serve: its engine, borrowed, and "cpu" or "cuda".
struct ServedModel {
  Engine* engine = nullptr;
  std::string backend;
};

// Constant after construction. Thread: any.
class ServedModels {
 public:
  struct Entry {
    Engine* engine = nullptr;
    v1::GetModelReply description;
    const std::string& name() const { return description.summary().name(); }
  };

  // Names are distinct.
  explicit ServedModels(const std::vector<ServedModel>& models);

  // The model `name` names. Errors: INVALID_ARGUMENT ("" where several are served), NOT_FOUND.
  absl::StatusOr<const Entry*> Find(absl::string_view name) const;
  const std::vector<Entry>& all() const { return models_; }

 private:
  std::string Names() const;

  std::vector<Entry> models_;
};

}  // namespace rivulet
