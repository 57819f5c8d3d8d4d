// SPDX-License-Identifier: Apache-2.0
// How a tensor's weights are stored in a file: as numbers, or in the blocks of GGUF, which hold
// small integers and their scales.
// Tested by: tests/unit/model/weights/dtype_test.cc
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "kernels/quantized.h"

namespace rivulet {

// Numbers are blocks of one weight.
enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS
};

struct DTypeLayout {
  const char* name;  // as in safetensors and GGUF
  size_t weights;    // in a block
  size_t bytes;      // of a block
};
const DTypeLayout& LayoutOf(DType dtype);

// No block is larger.
inline constexpr size_t kMaxBlockWeights = 256;

// safetensors has no type for blocks of integers. There such a tensor is called NAME.q8_0,
// NAME.q4_1 or NAME.q4_k, with the type U8 and the shape [rows, blocks, bytes of a block].
std::string BlockSuffix(DType dtype);  // ".q8_0"; "" for other types
// The type whose suffix ends `name`.
std::optional<DType> BlockTypeOf(absl::string_view name);

// Decodes `count` blocks at `bytes` to float32. Numbers are exact; the weights of a block have the
// bits of gguf's `dequantize`. out: [count * weights].
void DecodeBlocks(DType dtype, const char* bytes, size_t count, float* out);

// The groups of a block of integers: each weight is s q - m, rounded twice.
// groups: [weights / 32]. REQUIRES: PackedTypeOf(dtype) has a value.
void GroupsOf(DType dtype, const char* block, kernels::QuantizedGroup* groups);

// The type that holds such blocks in memory without rounding; nullopt: numbers.
std::optional<kernels::WeightType> PackedTypeOf(DType dtype);
// Packs a block of such a type as groups from `first_group` on of a column of PackedTypeOf(dtype).
// False if F16 cannot hold a minimum, as for Q4_0 with a scale from 8192 on.
[[nodiscard]] bool PackBlock(DType dtype, const char* block, int k, int column, int first_group,
                             void* panels);

// The index of the first of `count` blocks that holds a number or a scale that is not finite;
// nullopt if all are finite. The weights of blocks with finite scales are finite.
std::optional<size_t> FindNonFinite(DType dtype, const char* bytes, size_t count);

}  // namespace rivulet
