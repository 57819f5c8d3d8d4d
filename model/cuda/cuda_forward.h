// SPDX-License-Identifier: Apache-2.0
// CudaForward: the CudaNetwork of a linear transformer.
//
//   embed -> per layer [ norm of the layer before + qkv | attention | out + residual |
//                        norm + ffn1 + activation | ffn2 + residual ] -> norm(s) + head
// Norms are prologues of the products that read them; with many rows they are launches of their
// own, and what only products read is kept in F16 (where the weights are), rounded as a product
// would round it: the bits are the same. Products that stand alone then may be a library's
// (CudaProducts).
#pragma once

#include "absl/status/status.h"
#include "kernels/cuda/attention/linear_attention_cuda.h"
#include "model/config.h"
#include "model/cuda/cuda_network.h"
#include "model/cuda/cuda_products.h"
#include "model/cuda/cuda_scratch.h"
#include "model/cuda/cuda_slots.h"
#include "model/cuda/cuda_weights.h"

namespace rivulet {

// Thread: one. References must outlive it.
class CudaForward final : public CudaNetwork {
 public:
  // `many_rows`: from so many on a pass is one of many rows.
  CudaForward(const ModelConfig& config, const CudaWeights& weights, const CudaSlots& slots,
              const CudaScratch& scratch, const CudaProducts& products, int many_rows)
      : config_(config),
        weights_(weights),
        slots_(slots),
        scratch_(scratch),
        products_(products),
        many_rows_(many_rows) {}

  // Once a device, before the first launch there.
  static absl::Status Prepare();

  // Where the products of a pass of many rows read and write.
  static CudaProductPlaces Places(const CudaScratch& scratch, kernels::WeightType type,
                                  int max_tokens);

  // OK, or UNIMPLEMENTED saying why no kernel runs `config`.
  static absl::Status Check(const ModelConfig& config);

  absl::Status Layers(const kernels::CudaLaunch& launch, const CudaPass& pass) const override;
  absl::Status Head(const kernels::CudaLaunch& launch, int first, int rows) const override;

 private:
  bool Many(int rows) const { return rows >= many_rows_ || products_.all(); }
  // Many rows, and products that take F16.
  bool Wide(int rows) const;
  absl::Status Embed(const kernels::CudaLaunch& launch, const CudaPass& pass) const;
  absl::Status Queries(const kernels::CudaLaunch& launch, int index, int rows) const;
  absl::Status Attention(const kernels::CudaLaunch& launch, const CudaPass& pass, int index) const;
  absl::Status AttentionOut(const kernels::CudaLaunch& launch, const CudaPass& pass,
                            int index) const;
  absl::Status LibraryAttentionOut(const kernels::CudaLaunch& launch, const CudaPass& pass,
                                   int index, const int32_t* gather, int rows) const;
  absl::Status FeedForward(const kernels::CudaLaunch& launch, int index, int rows) const;
  absl::Status Expand(const kernels::CudaLaunch& launch, int index, int rows) const;
  // x as a product of so many rows reads it from a library's point of view.
  const void* InputX(int rows) const {
    return Wide(rows) ? static_cast<const void*>(scratch_.half) : scratch_.x;
  }
  absl::Status Normalize(const kernels::CudaLaunch& launch, const CudaNorm& norm, int first,
                         float* to, int rows) const;

  const ModelConfig& config_;
  const CudaWeights& weights_;
  const CudaSlots& slots_;
  const CudaScratch& scratch_;
  const CudaProducts& products_;
  const int many_rows_;
};

}  // namespace rivulet
