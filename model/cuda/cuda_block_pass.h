// SPDX-License-Identifier: Apache-2.0
// CudaBlockPass: one pass of CudaBlockForward, and the launches that its parts share.
#pragma once

#include "absl/status/status.h"
#include "kernels/activation.h"
#include "kernels/cuda/blocks/element_rows_cuda.h"
#include "kernels/cuda/blocks/recurrence_cuda.h"
#include "kernels/cuda/common/launch_cuda.h"
#include "model/config.h"
#include "model/cuda/cuda_network.h"
#include "model/cuda/cuda_products.h"
#include "model/cuda/cuda_scratch.h"
#include "model/cuda/cuda_weights.h"

namespace rivulet {

struct CudaBlockPass {
  using Array = CudaScratch::Array;

  const ModelConfig& config;
  const BlockState state;  // floats_per_slot: of a whole slot, with what attention keeps
  const StateParts& parts;
  const CudaWeights& weights;
  const CudaScratch& a;
  float* states;
  const CudaProducts& products;
  int many_rows;  // from so many on products are of many rows
  const kernels::CudaLaunch& launch;
  const CudaPass& pass;

  const BlockKind& kind() const { return *config.block().kind; }
  // out = x w + bias (+ residual, with the rows of out). With many rows and F16 weights x is
  // rounded to F16 first, as the product would round it, and a library may run it: the bits are the
  // same.
  absl::Status Product(const CudaWeightMatrix& w, const float* x, int ldx, float* out, int ld_out,
                       const float* residual = nullptr) const;
  // x = f(x) of `n` columns, times `times` where not null, and with scales.
  absl::Status Activate(kernels::Activation kind, float* x, int ld, int n,
                        const float* times = nullptr, const kernels::CudaScales& scales = {}) const;
  // y[m] = x + (x of the token before - x) mix[m]; `part`: of the layer's state.
  absl::Status Shift(const float* mix, int mixes, int layer, size_t part) const;
  // The arguments that all state updates share; y is `o`.
  kernels::CudaRecurrenceArgs Recurrence(int layer) const;
  absl::Status Recur(const kernels::CudaRecurrenceArgs& args) const;
  // Whether a product with `w` is one of many rows.
  bool Wide(const CudaWeightMatrix& w) const;
  // Of this layer's part in a slot.
  size_t Offset(int layer, size_t part) const { return parts.recurrent_at[size_t(layer)] + part; }
};

// What stands between the norm of a layer and its output product: h to o.
absl::Status CudaMixGated(const CudaBlockPass& p, const CudaLayer& layer, int index);
absl::Status CudaMixDelta(const CudaBlockPass& p, const CudaLayer& layer, int index);
absl::Status CudaMixMamba2(const CudaBlockPass& p, const CudaLayer& layer, int index);
absl::Status CudaMixShortConv(const CudaBlockPass& p, const CudaLayer& layer, int index);
absl::Status CudaMixSoftmax(const CudaBlockPass& p, const CudaSoftmaxLayer& layer, int index);
absl::Status CudaMixRwkv7(const CudaBlockPass& p, const CudaLayer& layer, int index);
// The first half of RWKV-7's feed-forward: h to ffn.
absl::Status CudaFeedRwkv7(const CudaBlockPass& p, const CudaLayer& layer, int index);

}  // namespace rivulet
