// SPDX-License-Identifier: Apache-2.0
// Recognises checkpoints of other libraries by the names of their tensors, so that whoever tries to
// serve one learns what it is.
#pragma once

#include <optional>
#include <span>
#include <string>

namespace rivulet {

struct ForeignCheckpoint {
  std::string family;   // "GLA"
  std::string library;  // "flash-linear-attention"
  std::string tensor;   // one that identified it
  bool served = false;  // with the config.json of its library (block_settings.h)
};

// What these names belong to; nullopt where no family is known by them.
std::optional<ForeignCheckpoint> RecognizeCheckpoint(std::span<const std::string> tensor_names);

// The same for the tensors of DIRECTORY/model.safetensors, or of those that
// DIRECTORY/model.safetensors.index.json lists; nullopt also where neither can be read. Reads the
// header only.
std::optional<ForeignCheckpoint> RecognizeCheckpointIn(const std::string& directory);

}  // namespace rivulet
