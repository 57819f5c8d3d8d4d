// SPDX-License-Identifier: Apache-2.0
// CudaBlockForward: the CudaNetwork of the family's models (model/block_config.h). The
// equations are those of BlockForward (model/cpu/block_forward.h); each operation is a launch.
// Products of many rows with F16 weights take the tiles of gemm_wide_cuda.h, with the same bits;
// the large ones may be a library's (CudaProducts).
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/config.h"
#include "model/cpu/block_weights.h"
#include "model/cuda/cuda_block_pass.h"
#include "model/cuda/cuda_block_scratch.h"
#include "model/cuda/cuda_block_weights.h"
#include "model/cuda/cuda_limits.h"
#include "model/cuda/cuda_network.h"
#include "model/cuda/cuda_products.h"
#include "model/cuda/cuda_scratch.h"
#include "model/cuda/cuda_slots.h"

namespace rivulet {

class CudaBlockForward final : public CudaNetwork {
 public:
  // See NewCudaNetwork. Reads the checkpoint into host memory.
  static absl::StatusOr<std::unique_ptr<CudaNetwork>> Create(const Model& model,
                                                             const CudaBackendOptions& options,
                                                             const CudaShared& shared);

  int numerics_version() const override { return 2; }
  std::string WhyNoLibrary() const override;
  Bytes Measure(const BackendLimits& limits, const CudaLibrary& library) override;
  absl::Status Load(const BackendLimits& limits, const CudaLibrary& library,
                    CudaQueue& queue) override;
  CudaProductPlaces Places(int max_tokens) const override;
  CudaLibraryWeights& library_weights() override { return weights_.library; }
  absl::Status Layers(const kernels::CudaLaunch& launch, const CudaPass& pass) const override;
  absl::Status Head(const kernels::CudaLaunch& launch, int first, int rows) const override;

 private:
  CudaBlockForward(const Model& model, std::unique_ptr<BlockWeights> host,
                   const CudaBackendOptions& options, const CudaShared& shared)
      : model_(model),
        config_(model.config()),
        state_(config_.state()),
        options_(options),
        slots_(shared.slots),
        outputs_(shared.outputs),
        products_(shared.products),
        host_(std::move(host)) {}
  CudaProductReads Reads(const CudaLibrary& library) const {
    return {library.library != nullptr, CudaHalves(options_)};
  }
  CudaBlockPass Pass(const kernels::CudaLaunch& launch, const CudaPass& pass) const;

  const Model& model_;
  const ModelConfig& config_;
  const BlockState state_;
  const CudaBackendOptions options_;
  const CudaSlots& slots_;
  const CudaOutputs& outputs_;
  const CudaProducts& products_;
  std::unique_ptr<BlockWeights> host_;  // until they are on the device
  CudaBlockWeights weights_;
  CudaBlockScratch scratch_;
};

}  // namespace rivulet
