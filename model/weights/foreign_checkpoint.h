// SPDX-License-Identifier: Apache-2.0
// Recognises checkpoints of other libraries by the names of their tensors, so that an error can
// name the library.
#pragma once

#include <optional>
#include <span>
#include <string>

namespace rivulet {

struct ForeignCheckpoint {
  std::string family;   // "GLA"
  std::string library;  // "flash-linear-attention"
  std::string tensor;   // a tensor that identified it
  bool served = false;  // with the config.json of its library (block_settings.h)
};

// The kind of checkpoint with tensors of these names; nullopt if no known family has them.
std::optional<ForeignCheckpoint> RecognizeCheckpoint(std::span<const std::string> tensor_names);

// The same for the tensors of DIRECTORY/model.safetensors, or for the tensors that
// DIRECTORY/model.safetensors.index.json lists; nullopt also if neither can be read. Reads the
// header only.
std::optional<ForeignCheckpoint> RecognizeCheckpointIn(const std::string& directory);

}  // namespace rivulet
