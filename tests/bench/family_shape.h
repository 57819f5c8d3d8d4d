// SPDX-License-Identifier: Apache-2.0
// Directories of models of the family with random weights, for benchmarks.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace rivulet::bench {

struct Rwkv7Shape {
  int hidden = 0, layers = 0, vocab = 65536;
  int decay = 64, rate = 64, value = 32, gate = 128;  // ranks of the low-rank products
  // Share of zeros in the inputs of ffn.value, at least 0.5: the ReLU of random numbers gives one
  // half, rows of zeros in ffn.key give the rest.
  double zeros = 0.5;
};

// Heads of 64 columns, one group, a convolution of 4 tokens, the head tied to the embedding.
struct Mamba2Shape {
  int hidden = 0, layers = 0, vocab = 50288;
  int state = 128;  // rows of a head's state
};

// Granite 4.0 H: layers of Mamba-2 (heads of 32 columns), and between them layers of attention
// without positions (heads of 64 columns); the rest as Mamba2Shape.
struct GraniteShape {
  int hidden = 0, layers = 0, vocab = 100352;
  int attention_every = 8;  // every 8th layer is attention
  int heads = 0, kv_heads = 0;
  int ffn = 0;
};

// Qwen3.5: layers of the gated delta rule (heads of 128 columns), and between them layers of gated
// attention (heads of 256 columns); the head tied to the embedding; a layer of multi-token
// prediction.
struct Qwen35Shape {
  int hidden = 0, layers = 0, vocab = 248320;
  int attention_every = 4;  // every 4th layer is attention
  int delta_heads = 0;      // number of key heads, and of value heads
  int heads = 0, kv_heads = 0;
  int ffn = 0;
};

// Each writes config.json and model.safetensors, all tensors in F16, into the existing `directory`.
// At most one tensor is in memory at a time. Errors: the errors of writing files.
absl::Status WriteRwkv7(const std::string& directory, const Rwkv7Shape& shape);
absl::Status WriteMamba2(const std::string& directory, const Mamba2Shape& shape);
absl::Status WriteGranite(const std::string& directory, const GraniteShape& shape);
absl::Status WriteQwen35(const std::string& directory, const Qwen35Shape& shape);

}  // namespace rivulet::bench
