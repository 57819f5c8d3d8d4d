// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file: a JSON text with the place of each tensor. model/FORMAT.md
// lists the rules.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/config.h"
#include "model/weights/dtype.h"

namespace rivulet {

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

// DATA_LOSS (CORRUPT_WEIGHTS): the files of a checkpoint break the rules of their format.
absl::Status CorruptWeights(absl::string_view message);

// In JSON's form: "[2, 3]".
std::string ShapeText(std::span<const int64_t> shape);

// The place of one tensor.
struct TensorEntry {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes from the beginning of the data, which follows the header
};
using TensorEntries = std::map<std::string, TensorEntry, std::less<>>;

// Checks `header` completely: its form, that the tensors are exactly `expected`, and that they fill
// the `data_bytes` bytes behind it without gap or overlap. Takes memory in proportion to `expected`
// and to one entry of the header. Errors: DATA_LOSS naming the tensor, or else the rule.
absl::StatusOr<TensorEntries> ParseSafetensorsHeader(absl::string_view header, uint64_t data_bytes,
                                                     std::span<const TensorSpec> expected);
// The same check for a file that may hold any tensors: memory in proportion to the header.
absl::StatusOr<TensorEntries> ParseSafetensorsHeader(absl::string_view header, uint64_t data_bytes);

}  // namespace rivulet
