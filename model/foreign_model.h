// SPDX-License-Identifier: Apache-2.0
// Recognises models of other programs at the path of --model. The errors say what the path holds
// and how to make a model directory of it.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace rivulet {

// The error for a `path` that is neither a directory nor a GGUF file. FOREIGN_CHECKPOINT: a file of
// another program (PyTorch, safetensors, a pointer of Git LFS); else NOT_FOUND. `shown`: the path,
// for messages.
absl::Status RefuseFile(const std::string& path, const std::string& shown);

// `directory` could not be loaded because of `status`. Returns FOREIGN_CHECKPOINT where its
// tensors, its config.json or, without one, its files are another program's; else, and where its
// config.json has a model_type, `status`. Reads no weight.
absl::Status ExplainDirectory(const std::string& directory, const std::string& shown,
                              const absl::Status& status);

}  // namespace rivulet
