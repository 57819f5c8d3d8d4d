// SPDX-License-Identifier: Apache-2.0
// WeightChoice: the types of a model's matrices in memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/config.h"

namespace rivulet {

// On the CPU. With int8 and int4 (kernels/quantized.h) activations have 8 bits, too; with the other
// types arithmetic is float32.
enum class WeightPrecision : uint8_t {
  kAuto,  // as in the file, without loss; kF32 if the tensors of one matrix differ
  kF32,
  kF16,   // rounds F32 and BF16 files; a weight that is too large for F16 is an error
  kBF16,  // rounds F32 and F16 files
  kInt8,
  kInt4,
};

// int8 and int4 are for the large matrices. Decays, gates of states, their low-rank products, and
// everything of one dimension stay as with kAuto.
struct WeightChoice {
  WeightPrecision layers = WeightPrecision::kAuto;
  // The type of embedding and head. nullopt: as the layers, with two exceptions. With kInt4 layers
  // they are kInt8. With kInt8 and kInt4 a mixture of logistics is kAuto: it is small and
  // sensitive.
  std::optional<WeightPrecision> head;

  WeightChoice() = default;
  WeightChoice(WeightPrecision precision) : layers(precision) {}  // NOLINT: a choice for all
  auto operator<=>(const WeightChoice&) const = default;

  bool quantized() const {
    return layers >= WeightPrecision::kInt8 || head.value_or(layers) >= WeightPrecision::kInt8;
  }
};

// `choice` with the type of the head for this model filled in.
WeightChoice ResolveHead(const WeightChoice& choice, const ModelConfig& config);

// Parses "auto", "f32", "f16", "bf16", "int8" or "int4", and ",head=" with one of these names if
// embedding and head have another type: "int4,head=f16". Errors: INVALID_ARGUMENT (CONFIG_INVALID,
// field "weights").
absl::StatusOr<WeightChoice> ParseWeightChoice(absl::string_view text);

// The text that ParseWeightChoice reads.
std::string WeightChoiceName(const WeightChoice& choice);

// The choice as part of numerics ids, with the version of the rounding to integers:
// "int8q1-headexact". REQUIRES: choice.head has a value.
std::string WeightNumerics(const WeightChoice& choice);

// Checks that the CUDA backend supports it: INVALID_ARGUMENT (CONFIG_INVALID, field "weights") for
// kInt4, and for kInt8 with products in float32.
absl::Status CheckCudaWeights(const WeightChoice& choice, bool float32);

}  // namespace rivulet
