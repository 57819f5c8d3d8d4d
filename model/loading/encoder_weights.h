// SPDX-License-Identifier: Apache-2.0
// Reads the parts of PackedWeights for kinds "linear" and "softmax" (model/FORMAT.md).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/feature_map.h"
#include "model/config.h"
#include "model/loading/packed_weights.h"
#include "model/loading/tensor_packer.h"

namespace rivulet {

// Reads tables, layers, final norm and head. Errors: those of TensorPacker.
absl::Status ReadEncoderWeights(TensorPacker* reader, PackedWeights* weights);

// Rows of the table of positions: all learned ones, or the first sinusoidal ones.
int64_t PositionTableRows(const ModelConfig& config);

// The feature map of every layer and head, except omega.
kernels::FeatureMapArgs FeatureMapOf(const ModelConfig& config);

// Floats between the omegas of two heads; 0: all heads of a layer share one.
size_t OmegaFloatsPerHead(const ModelConfig& config);

}  // namespace rivulet
