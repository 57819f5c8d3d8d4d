// SPDX-License-Identifier: Apache-2.0
// Presents a GGUF file of llama.cpp's converter as a checkpoint in the layout of save_pretrained:
// its settings as a config.json, its tensors under the names and in the shapes that the family's
// loader of weights expects, its tokenizer and template.
// Tested by: tests/unit/model/gguf_model_test.cc, tests/conformance/family_golden_test.cc
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/weights/checkpoint_tensors.h"
#include "model/weights/gguf_header.h"

namespace rivulet {

// Whether `path` is a regular file that begins like a GGUF file.
bool IsGgufFile(const std::string& path);

// The name of the model in the file `path`: without directory, ".gguf" and the number of a part.
std::string GgufStem(absl::string_view path);

// The path of the GGUF file in `directory` whose model is called `name`; of several files the first
// by name, so the first part; "" if there is none.
std::string FindGgufFile(const std::string& directory, absl::string_view name);

// The architectures that are served, for messages.
std::string GgufArchitectures();

struct GgufModel {
  std::string config;  // for ParseBlockConfig
  std::unique_ptr<const CheckpointTensors> tensors;
  GgufMetadata metadata;  // of the first part
};

// Opens the file, or all parts if it is the first part (NAME-00001-of-0000N.gguf). No weight is
// read. Errors name the file, and the key or the tensor: the errors of ParseGgufHeader; NOT_FOUND
// (a part); FOREIGN_CHECKPOINT (another architecture), UNSUPPORTED_MODEL and INVALID_CONFIG
// (INVALID_ARGUMENT; a setting), CORRUPT_WEIGHTS (DATA_LOSS; parts that do not fit together, a
// tensor that the architecture does not have).
absl::StatusOr<GgufModel> OpenGgufModel(const std::string& path);

}  // namespace rivulet
