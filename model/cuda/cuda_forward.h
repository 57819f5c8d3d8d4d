// SPDX-License-Identifier: Apache-2.0
// CudaForward: the CudaNetwork of a transformer of our own format, with linear or softmax
// attention.
//
//   embed -> per layer [ norm of the layer before + qkv | attention | out + residual |
//                        norm + ffn1 + activation | ffn2 + residual ] -> norm(s) + head
// Rotary positions turn q and k before the attention, and a transform stands before the head. Norms
// are prologues of the products that read them. With many rows norms are separate launches, and
// values that only products read are stored in F16 (if the weights are F16), rounded as a product
// would round them: the bits are the same. A library may then run separate products (CudaProducts).
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/cuda/cuda_network.h"
#include "model/cuda/cuda_products.h"
#include "model/cuda/cuda_weights.h"

namespace rivulet {

class CudaForward final : public CudaNetwork {
 public:
  // See NewCudaNetwork.
  static absl::StatusOr<std::unique_ptr<CudaNetwork>> Create(const Model& model,
                                                             const CudaBackendOptions& options,
                                                             const CudaShared& shared);

  int numerics_version() const override { return 2; }
  CudaProductPlaces Places(int max_tokens) const override;
  absl::Status Layers(const kernels::CudaLaunch& launch, const CudaPass& pass) const override;
  absl::Status Head(const kernels::CudaLaunch& launch, int first, int rows) const override;

 private:
  using CudaNetwork::CudaNetwork;
  absl::Status Prepare() const override;
  bool Many(int rows) const { return rows >= options_.many_rows; }
  // Whether there are many rows, and products that take F16.
  bool Wide(int rows) const;
  absl::Status Embed(const kernels::CudaLaunch& launch, const CudaPass& pass) const;
  absl::Status Queries(const kernels::CudaLaunch& launch, int index, int rows) const;
  absl::Status Gates(const kernels::CudaLaunch& launch, int index, int rows) const;
  absl::Status Attention(const kernels::CudaLaunch& launch, const CudaPass& pass, int index) const;
  absl::Status Softmax(const kernels::CudaLaunch& launch, const CudaPass& pass, int index) const;
  absl::Status AttentionOut(const kernels::CudaLaunch& launch, const CudaPass& pass,
                            int index) const;
  absl::Status FeedForward(const kernels::CudaLaunch& launch, int index, int rows) const;
  absl::Status Expand(const kernels::CudaLaunch& launch, int index, int rows) const;
  // x in the form that a library's product of `rows` rows reads.
  const void* InputX(int rows) const {
    return Wide(rows) ? static_cast<const void*>(scratch_.half.x.data) : scratch_.x.data;
  }
  absl::Status Normalize(const kernels::CudaLaunch& launch, const CudaNorm& norm, const float* from,
                         float* to, int rows) const;
};

}  // namespace rivulet
