// SPDX-License-Identifier: Apache-2.0
// Directories of RWKV-7 models with random weights, for benchmarks of the family.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace rivulet::bench {

struct Rwkv7Shape {
  int hidden = 0, layers = 0, vocab = 65536;
  int decay = 64, rate = 64, value = 32, gate = 128;  // ranks of the low-rank products
};

// Writes config.json and model.safetensors, matrices in F16, into `directory`, which exists.
// Nothing larger than a tensor is in memory. Errors: those of writing files.
absl::Status WriteRwkv7(const std::string& directory, const Rwkv7Shape& shape);

}  // namespace rivulet::bench
