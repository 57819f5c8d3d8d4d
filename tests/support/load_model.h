// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "model/model.h"
#include "tests/support/paths.h"

namespace rivulet::testing {

// The model of a directory of the checkout; its weights are not read. Ends the program if the model
// does not load.
inline std::shared_ptr<const Model> LoadModel(const std::string& path) {
  auto model = Model::Load(SourcePath(path));
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}
inline std::shared_ptr<const Model> LoadTinyModel(const std::string& name) {
  return LoadModel("tests/conformance/models/" + name);
}

}  // namespace rivulet::testing
