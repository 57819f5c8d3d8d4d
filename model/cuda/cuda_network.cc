// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_network.h"

#include <utility>
#include <variant>

#include "model/base/error.h"
#include "model/cuda/cuda_block_forward.h"
#include "model/cuda/cuda_forward.h"
#include "model/cuda/cuda_limits.h"

namespace rivulet {

static CudaProductReads Reads(const CudaBackendOptions& options, const CudaLibrary& library) {
  return {library.library != nullptr, CudaHalves(options)};
}

CudaNetwork::Bytes CudaNetwork::Measure(const BackendLimits& limits, const CudaLibrary& library) {
  return {CudaWeights::Bytes(config_, *host_, options_.precision, library.library != nullptr),
          CudaScratch::Bytes(config_, host_->columns, Reads(options_, library), limits)};
}

absl::Status CudaNetwork::Load(const BackendLimits& limits, const CudaLibrary& library,
                               CudaQueue& queue) {
  RIVULET_RETURN_IF_ERROR(Prepare());
  RIVULET_ASSIGN_OR_RETURN(weights_,
                           CudaWeights::Load(config_, std::move(host_), options_.precision,
                                             library.library != nullptr, queue));
  RIVULET_ASSIGN_OR_RETURN(
      scratch_, CudaScratch::Create(config_, weights_.columns, Reads(options_, library), limits,
                                    queue.launch()));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CudaNetwork>> NewCudaNetwork(const Model& model,
                                                            const CudaBackendOptions& options,
                                                            const CudaShared& shared) {
  return std::holds_alternative<BlockConfig>(model.config().network)
             ? CudaBlockForward::Create(model, options, shared)
             : CudaForward::Create(model, options, shared);
}

}  // namespace rivulet
