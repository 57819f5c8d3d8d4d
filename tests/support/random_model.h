// SPDX-License-Identifier: Apache-2.0
// Model directories for tests: any valid configuration with random weights, and low-level writers
// that can also write invalid files.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "model/config.h"
#include "model/weights/safetensors_header.h"

namespace rivulet::testing {

// A new empty directory. The destructor removes it with its contents.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  // Path of a file in it.
  std::string File(absl::string_view name) const;

 private:
  std::string path_;
};

// Writes `bytes` to `path`, replacing it.
absl::Status WriteFile(const std::string& path, absl::string_view bytes);

// One tensor of a safetensors file, as the file states it; nothing is checked.
struct RawTensor {
  std::string name;
  std::string dtype;  // "F32", ...
  std::vector<int64_t> shape;
  std::string bytes;  // little-endian, row-major
};

// A tensor of `values`, rounded to nearest even if `dtype` is shorter than float32.
RawTensor MakeTensor(std::string name, std::vector<int64_t> shape, DType dtype,
                     std::span<const float> values);

// The bytes of a safetensors file with these tensors, one behind the other in this order, header
// padded with spaces to a multiple of 8 bytes.
std::string WriteSafetensors(std::span<const RawTensor> tensors);
// The same from a header and data of the caller's choice: 8 bytes of length, `header`, `data`.
std::string WriteSafetensors(absl::string_view header, absl::string_view data);

// A small valid configuration to start from: elu, no positions, categorical head, bos 0, tokens.
ModelConfig TinyConfig();
// Sets kind, n_dims (num_features for rfa; unused by elu) and the resulting column counts.
FeatureMapConfig MakeFeatureMap(kernels::FeatureMapKind kind, int n_dims = 0,
                                float softmax_temp = 1, float smoothing = 0);

// The config.json that ParseModelConfig reads as `config`.
std::string ConfigJson(const ModelConfig& config);

// Deterministic weights of every tensor of `config`: uniform in +-1/sqrt(inputs) for matrices, +-1
// for omega and embeddings, near 1 for sigma and the weights of LayerNorm, near 0 for biases.
std::vector<RawTensor> RandomTensors(const ModelConfig& config, uint64_t seed, DType dtype);

// Writes config.json and model.safetensors into `directory`, which is created if it is missing.
// REQUIRES: `config` is valid (ParseModelConfig accepts its text).
absl::Status WriteRandomModel(const std::string& directory, const ModelConfig& config,
                              uint64_t seed, DType dtype = DType::kF32);

}  // namespace rivulet::testing
