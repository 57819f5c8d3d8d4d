// SPDX-License-Identifier: Apache-2.0
// CudaBlockForward: the CudaNetwork of the family's models (model/blocks/block_config.h). The
// equations are those of BlockForward (model/cpu/block_forward.h); each operation is a launch.
// Products of many rows with F16 weights take the tiles of gemm_wide_cuda.h, with the same bits;
// the large ones may be a library's (CudaProducts).
#pragma once

#include "absl/status/status.h"
#include "model/config.h"
#include "model/cpu/block_weights.h"
#include "model/cuda/cuda_block_pass.h"
#include "model/cuda/cuda_block_scratch.h"
#include "model/cuda/cuda_block_weights.h"
#include "model/cuda/cuda_network.h"
#include "model/cuda/cuda_products.h"
#include "model/cuda/cuda_scratch.h"
#include "model/cuda/cuda_slots.h"

namespace rivulet {

// Thread: one. References must outlive it.
class CudaBlockForward final : public CudaNetwork {
 public:
  // `outputs`: where head outputs go; `many_rows`: from so many on a pass is one of many rows.
  // REQUIRES: config.blocks.
  CudaBlockForward(const ModelConfig& config, const CudaBlockWeights& weights,
                   const CudaBlockScratch& scratch, const CudaSlots& slots,
                   const CudaScratch& outputs, const CudaProducts& products, int many_rows)
      : config_(*config.blocks),
        state_(config_.state()),
        weights_(weights),
        scratch_(scratch),
        slots_(slots),
        outputs_(outputs),
        products_(products),
        many_rows_(many_rows) {}

  // Once a device, before the first launch there.
  static absl::Status Prepare();
  // OK, or UNIMPLEMENTED (MODEL_UNSUPPORTED) saying why no kernel runs `config`.
  static absl::Status Check(const BlockConfig& config);
  // Columns that the first halves of the low-rank products of a layer need; 0: there are none.
  static int LowColumns(const BlockWeights& weights);
  // Where the large products of many rows read and write.
  static CudaProductPlaces Places(const BlockConfig& config, const CudaBlockScratch& scratch,
                                  const CudaScratch& outputs, int max_tokens);

  absl::Status Layers(const kernels::CudaLaunch& launch, const CudaPass& pass) const override;
  absl::Status Head(const kernels::CudaLaunch& launch, int first, int rows) const override;

 private:
  CudaBlockPass Pass(const kernels::CudaLaunch& launch, const CudaPass& pass) const;

  const BlockConfig& config_;
  const BlockState state_;
  const CudaBlockWeights& weights_;
  const CudaBlockScratch& scratch_;
  const CudaSlots& slots_;
  const CudaScratch& outputs_;
  const CudaProducts& products_;
  const int many_rows_;
};

}  // namespace rivulet
