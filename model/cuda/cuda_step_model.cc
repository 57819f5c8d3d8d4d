// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_step_model.h"

#include "model/cuda/cuda_model_args.h"
#include "model/loading/encoder_weights.h"

namespace rivulet {

using kernels::StepLayer;
using kernels::StepModel;

StepModel CudaStepModel::Shapes(const ModelConfig& config) {
  StepModel model;
  model.hidden = config.hidden_size;
  model.ffn = config.ffn_size;
  model.activation = CudaActivation(config);
  model.norm_eps = config.norm_eps;
  model.head = {kernels::WeightType::kF32, config.hidden_size, config.output_size(), nullptr,
                nullptr};
  model.attention.layout = config.state_layout();
  model.attention.map = FeatureMapOf(config);
  model.attention.gated = config.encoder().gate == Gate::kRfa;
  return model;
}

size_t CudaStepModel::Bytes(const ModelConfig& config) {
  return size_t(config.num_layers) * sizeof(StepLayer);
}

absl::StatusOr<CudaStepModel> CudaStepModel::Create(const ModelConfig& config,
                                                    const CudaWeights& weights,
                                                    const CudaSlots& slots, CudaQueue& queue) {
  const auto norm = [](const CudaNorm& n) { return kernels::StepNorm{n.weight, n.bias}; };
  CudaStepModel made;
  for (const CudaLayer& l : weights.layers) {
    made.layers_.push_back({l.in, l.out, l.up, l.down, norm(l.norm1), norm(l.norm2), l.omega});
  }
  RIVULET_ASSIGN_OR_RETURN(made.on_device_, CudaMemory::OnDevice(Bytes(config)));
  RIVULET_RETURN_IF_ERROR(queue.CopyIn(made.on_device_.data(), made.layers_.data(), Bytes(config)));
  made.model_ = Shapes(config);
  made.model_.layers = static_cast<const StepLayer*>(made.on_device_.data());
  made.model_.final_norm = norm(weights.final_norm);
  made.model_.head = weights.head;
  made.model_.embed = CudaEmbedding(config, weights);
  made.model_.attention = CudaAttention(config, slots);
  return made;
}

}  // namespace rivulet
