// SPDX-License-Identifier: Apache-2.0
// CudaBlockForward: the CudaNetwork of the family's models (model/block_config.h). It has the
// equations of CpuNetwork (model/cpu/cpu_network.h). Each operation is a launch, but independent
// products share one. Products of many rows with F16 weights use the tiles of gemm_wide_cuda.h,
// with the same bits; a library may run the large ones (CudaProducts).
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/cuda/cuda_block_pass.h"
#include "model/cuda/cuda_network.h"

namespace rivulet {

class CudaBlockForward final : public CudaNetwork {
 public:
  // See NewCudaNetwork.
  static absl::StatusOr<std::unique_ptr<CudaNetwork>> Create(const Model& model,
                                                             const CudaBackendOptions& options,
                                                             const CudaShared& shared);

  int numerics_version() const override { return 3; }
  std::string WhyNoLibrary() const override;
  CudaProductPlaces Places(int max_tokens) const override;
  absl::Status Layers(const kernels::CudaLaunch& launch, const CudaPass& pass) const override;
  absl::Status Head(const kernels::CudaLaunch& launch, int first, int rows) const override;

 private:
  CudaBlockForward(const Model& model, std::unique_ptr<PackedWeights> host,
                   const CudaBackendOptions& options, const CudaShared& shared)
      : CudaNetwork(model, std::move(host), options, shared) {}
  absl::Status Prepare() const override;
  CudaBlockPass Pass(const kernels::CudaLaunch& launch, const CudaPass& pass) const;
};

}  // namespace rivulet
