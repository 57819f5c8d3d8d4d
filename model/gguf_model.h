// SPDX-License-Identifier: Apache-2.0
// Models as llama.cpp's converter writes them into GGUF files, as if they were checkpoints in the
// layout of save_pretrained: their settings as a config.json, their tensors under the names and in
// the shapes that the family's loader of weights asks for, their tokenizer and template.
// Tested by: tests/unit/model/gguf_model_test.cc, tests/conformance/family_golden_test.cc
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/weights/checkpoint_tensors.h"
#include "model/weights/gguf_header.h"

namespace rivulet {

// Whether `path` is a regular file that begins as GGUF files do.
bool IsGgufFile(const std::string& path);

// The name of the model in the file `path`: without directory, ".gguf" and the number of a part.
std::string GgufStem(absl::string_view path);

// The path of the GGUF file in `directory` whose model is called `name`, of several the first by
// name, so of parts the first; "" where there is none.
std::string FindGgufFile(const std::string& directory, absl::string_view name);

// The architectures that are served, for messages.
std::string GgufArchitectures();

struct GgufModel {
  std::string config;  // for ParseBlockConfig
  std::unique_ptr<const CheckpointTensors> tensors;
  GgufMetadata metadata;  // of the first part
};

// Opens the file, or the first of its parts (NAME-00001-of-0000N.gguf) and the others beside it. No
// weight is read. Errors name the file, and the key or the tensor: those of ParseGgufHeader;
// NOT_FOUND (a part); FOREIGN_CHECKPOINT (another architecture), UNSUPPORTED_MODEL and
// INVALID_CONFIG (INVALID_ARGUMENT; a setting), CORRUPT_WEIGHTS (DATA_LOSS; parts that do not fit
// together, a tensor that the architecture does not have).
absl::StatusOr<GgufModel> OpenGgufModel(const std::string& path);

}  // namespace rivulet
