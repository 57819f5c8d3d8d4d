// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_network.h"

#include <variant>

#include "model/cuda/cuda_block_forward.h"
#include "model/cuda/cuda_forward.h"

namespace rivulet {

absl::StatusOr<std::unique_ptr<CudaNetwork>> NewCudaNetwork(const Model& model,
                                                            const CudaBackendOptions& options,
                                                            const CudaShared& shared) {
  return std::holds_alternative<BlockConfig>(model.config().network)
             ? CudaBlockForward::Create(model, options, shared)
             : CudaForward::Create(model, options, shared);
}

}  // namespace rivulet
