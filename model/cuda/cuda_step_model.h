// SPDX-License-Identifier: Apache-2.0
// CudaStepModel: the description of a model for the kernels of whole steps
// (kernels/cuda/latency/step_model_cuda.h).
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/latency/step_model_cuda.h"
#include "model/config.h"
#include "model/cuda/cuda_device.h"
#include "model/cuda/cuda_queue.h"
#include "model/cuda/cuda_slots.h"
#include "model/cuda/cuda_weights.h"

namespace rivulet {

// Immutable once made.
class CudaStepModel {
 public:
  // The shapes, without device memory.
  static kernels::StepModel Shapes(const ModelConfig& config);
  // Device memory that Create takes.
  static size_t Bytes(const ModelConfig& config);

  // `weights` and `slots` must outlive the result.
  static absl::StatusOr<CudaStepModel> Create(const ModelConfig& config, const CudaWeights& weights,
                                              const CudaSlots& slots, CudaQueue& queue);

  const kernels::StepModel& model() const { return model_; }
  // A copy of the layers in host memory.
  const std::vector<kernels::StepLayer>& layers() const { return layers_; }

 private:
  kernels::StepModel model_;
  std::vector<kernels::StepLayer> layers_;
  CudaMemory on_device_;
};

}  // namespace rivulet
