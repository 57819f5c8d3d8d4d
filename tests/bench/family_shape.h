// SPDX-License-Identifier: Apache-2.0
// Directories of models of the family with random weights, for benchmarks.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace rivulet::bench {

struct Rwkv7Shape {
  int hidden = 0, layers = 0, vocab = 65536;
  int decay = 64, rate = 64, value = 32, gate = 128;  // ranks of the low-rank products
  // Of the inputs of ffn.value, at least 0.5: a ReLU of random numbers leaves half, the rest are
  // rows of zeros in ffn.key.
  double zeros = 0.5;
};

// Heads of 64 columns, one group, a convolution of 4 tokens, the head tied to the embedding.
struct Mamba2Shape {
  int hidden = 0, layers = 0, vocab = 50288;
  int state = 128;  // rows of a head's state
};

// Granite 4.0 H: Mamba-2, whose heads have 32 columns, and between it layers of attention without
// positions, whose heads have 64; all else as Mamba2Shape.
struct GraniteShape {
  int hidden = 0, layers = 0, vocab = 100352;
  int attention_every = 8;  // the last of so many layers attends
  int heads = 0, kv_heads = 0;
  int ffn = 0;
};

// Qwen3.5: the gated delta rule, whose heads have 128 columns, and between it layers of gated
// attention, whose heads have 256; the head tied to the embedding.
struct Qwen35Shape {
  int hidden = 0, layers = 0, vocab = 248320;
  int attention_every = 4;  // the last of so many layers attends
  int delta_heads = 0;      // as many of keys as of values
  int heads = 0, kv_heads = 0;
  int ffn = 0;
};

// Each writes config.json and model.safetensors, everything in F16, into `directory`, which exists.
// Nothing larger than a tensor is in memory. Errors: those of writing files.
absl::Status WriteRwkv7(const std::string& directory, const Rwkv7Shape& shape);
absl::Status WriteMamba2(const std::string& directory, const Mamba2Shape& shape);
absl::Status WriteGranite(const std::string& directory, const GraniteShape& shape);
absl::Status WriteQwen35(const std::string& directory, const Qwen35Shape& shape);

}  // namespace rivulet::bench
