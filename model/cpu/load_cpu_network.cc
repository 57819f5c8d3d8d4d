// SPDX-License-Identifier: Apache-2.0
#include "model/cpu/load_cpu_network.h"

#include <string>
#include <utility>
#include <variant>

#include "model/base/error.h"
#include "model/cpu/block_forward.h"
#include "model/cpu/block_weights.h"
#include "model/cpu/cpu_forward.h"
#include "model/cpu/cpu_weights.h"

namespace rivulet {

absl::StatusOr<std::unique_ptr<const CpuNetwork>> LoadCpuNetwork(const Model& model,
                                                                 WeightPrecision precision) {
  const ModelConfig& config = model.config();
  if (std::holds_alternative<BlockConfig>(config.network)) {
    RIVULET_ASSIGN_OR_RETURN(std::unique_ptr<const BlockWeights> weights,
                             BlockWeights::Load(model.tensors(), config, precision));
    return std::make_unique<BlockForward>(config, std::move(weights));
  }
  RIVULET_ASSIGN_OR_RETURN(std::unique_ptr<const CpuWeights> weights,
                           CpuWeights::Load(model, precision));
  return std::make_unique<CpuForward>(config, std::move(weights));
}

absl::StatusOr<size_t> MeasureCpuWeights(const Model& model, WeightPrecision precision) {
  const CheckpointTensors& tensors = model.tensors();
  if (std::holds_alternative<BlockConfig>(model.config().network)) {
    return BlockWeights::Measure(tensors, model.config(), precision);
  }
  size_t bytes = 0;
  for (const std::string& name : tensors.names()) {
    const TensorEntry& tensor = *tensors.Find(name);
    size_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= static_cast<size_t>(size);
    bytes += precision == WeightPrecision::kAuto  ? static_cast<size_t>(tensor.end - tensor.begin)
             : precision == WeightPrecision::kF32 ? elements * 4
                                                  : elements * 2;
  }
  return bytes;
}

}  // namespace rivulet
