// SPDX-License-Identifier: Apache-2.0
// Recognises models of other programs at the path of --model. The errors say what the path holds
// and how to convert it into a model directory.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace rivulet {

// The error for a `path` that is neither a directory nor a GGUF file. FOREIGN_CHECKPOINT: a file of
// another program (PyTorch, safetensors, a pointer of Git LFS); else NOT_FOUND. `shown`: the path,
// for messages.
absl::Status RefuseFile(const std::string& path, const std::string& shown);

// Explains why `directory` could not be loaded, which failed with `status`. Returns
// FOREIGN_CHECKPOINT if the tensors, the config.json or, without a config.json, the files are of
// another program; else `status`, and always if config.json has a model_type. Reads no weight.
absl::Status ExplainDirectory(const std::string& directory, const std::string& shown,
                              const absl::Status& status);

}  // namespace rivulet
