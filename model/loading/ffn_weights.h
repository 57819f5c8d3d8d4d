// SPDX-License-Identifier: Apache-2.0
// Reads the feed-forwards of hybrids: dense, or mixtures of experts.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "model/loading/packed_weights.h"
#include "model/loading/tensor_packer.h"

namespace rivulet {

// Tensors of one feed-forward, without ".weight". `gate` "": relu(up)^2. If `gate` is `up`, they
// are the halves of one tensor.
struct FfnNames {
  absl::string_view gate, up, down;
};

// Tensors of a mixture of experts, behind `prefix`.
struct ExpertTensorNames {
  absl::string_view prefix, router, bias, shared_gate;
  FfnNames shared;  // up "": there is no shared expert
  // Of expert N, behind "experts.N.". All experts may also be one tensor: "experts.gate_up_proj" or
  // "input_linear.weight" [experts, gate | up, hidden]; or "experts.gate_proj", "experts.up_proj".
  FfnNames one;
};

// NAME.bias, times `scale`.
absl::Status ReadBias(TensorPacker* reader, const std::string& name, int size, float scale,
                      std::vector<float>* bias);

// A dense feed-forward, or the shared expert, of `size` columns. `prefix`: of all names.
absl::Status ReadFfn(TensorPacker* reader, const std::string& prefix, const FfnNames& names,
                     int size, LayerWeights* layer);

// A mixture of experts, with its shared expert.
absl::Status ReadExperts(TensorPacker* reader, const std::string& layer_name,
                         const ExpertTensorNames& names, LayerWeights* layer);

}  // namespace rivulet
