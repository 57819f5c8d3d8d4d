// SPDX-License-Identifier: Apache-2.0
// CudaBlockPass: one pass of CudaBlockForward, and launches that its parts share.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "kernels/activation.h"
#include "kernels/cuda/blocks/element_rows_cuda.h"
#include "kernels/cuda/blocks/recurrence_cuda.h"
#include "kernels/cuda/common/launch_cuda.h"
#include "model/backend_options.h"
#include "model/config.h"
#include "model/cuda/cuda_network.h"
#include "model/cuda/cuda_products.h"
#include "model/cuda/cuda_scratch.h"
#include "model/cuda/cuda_weights.h"

namespace rivulet {

// Rows that products read and write: float or, in passes of many rows, F16.
struct CudaBlockRows {
  float* data = nullptr;     // null: F16
  uint16_t* half = nullptr;  // null: float
  int ld = 0;
  // These rows from a column on.
  CudaBlockRows From(int column) const {
    return {data == nullptr ? nullptr : data + column, half == nullptr ? nullptr : half + column,
            ld};
  }
  kernels::CudaHalfRows halves() const { return {half, size_t(ld)}; }
};

// out = f(in w + bias).
struct CudaBlockProduct {
  const CudaWeightMatrix* w = nullptr;
  CudaBlockRows in, out;
  kernels::Activation activation = kernels::Activation::kIdentity;
};

struct CudaBlockPass {
  using Array = CudaScratch::Array;

  const ModelConfig& config;
  const BlockState state;  // floats_per_slot: of a whole slot, with the cache of attention
  const StateParts& parts;
  const CudaWeights& weights;
  const CudaScratch& a;
  float* states;
  const CudaProducts& products;
  const CudaBackendOptions& options;
  const kernels::CudaLaunch& launch;
  const CudaPass& pass;

  const BlockKind& kind() const { return *config.block().kind; }
  // Whether the pass has many rows and products in F16. Then inputs of products are F16; the kernel
  // that writes them rounds them as the product would. The bits are the same, and a library may run
  // large products. In a hybrid two mixers may read one norm, so its rows are float, and products
  // of many rows round them.
  bool many() const {
    return pass.rows >= options.many_rows && a.half.x.data != nullptr && !kind().hybrid;
  }
  CudaBlockRows Rows(const Array& floats, const CudaScratch::Halves& halves) const {
    return many() ? CudaBlockRows{nullptr, halves.data, halves.ld}
                  : CudaBlockRows{floats.data, nullptr, floats.ld};
  }
  // The normed row, and the output of the mixer.
  CudaBlockRows normed() const { return Rows(a.h, a.half.x); }
  CudaBlockRows mixed() const { return Rows(a.o, a.half.x); }
  // The hidden row of the feed-forward.
  CudaBlockRows fed() const {
    return Rows(a.ffn, kind().mixer == Mixer::kRwkv7 ? a.half.ffn : a.half.x);
  }

  // out = x w + bias (+ residual, with the rows of out).
  absl::Status Product(const CudaWeightMatrix& w, const CudaBlockRows& x, float* out, int ld_out,
                       const float* residual = nullptr) const;
  // Product of float rows. With many rows and F16 weights x is rounded to F16 first.
  absl::Status Product(const CudaWeightMatrix& w, const float* x, int ldx, float* out,
                       int ld_out) const;
  // Product of float rows that are always rounded to F16 first.
  absl::Status Rounded(const CudaWeightMatrix& w, const float* x, int ldx, float* out, int ld_out,
                       const float* residual) const;
  // Independent products in one launch. Products with float32 weights beside others need one more
  // launch, and each product of a library one. A library's product writes float and has no
  // activation.
  absl::Status Products(std::span<const CudaBlockProduct> products) const;
  // y = f(x) of `n` columns, times `times` where not null, and with scales; `times` and y have the
  // rows of x.
  absl::Status Activate(kernels::Activation kind, const Array& x, int n, const float* times,
                        const CudaBlockRows& y, const kernels::CudaScales& scales = {}) const;
  // h = norm(x), y[m] = h + (h of the token before - h) mix[m]; `part`: the part of the layer's
  // state.
  absl::Status Shift(const CudaNorm& norm, const float* x, const float* mix, int mixes, int layer,
                     size_t part) const;
  // Output m of Shift.
  CudaBlockRows shifted(int m) const {
    const CudaBlockRows rows = Rows(a.mix, a.half.mix);
    return rows.From(m * (rows.ld / CudaScratch::kMixes));
  }
  // The common arguments of all state updates; y is `o`.
  kernels::CudaRecurrenceArgs Recurrence(int layer) const;
  absl::Status Recur(const kernels::CudaRecurrenceArgs& args) const;
  // Whether a product with `w` uses the kernels for many rows.
  bool Wide(const CudaWeightMatrix& w) const;
  // The offset of this layer's part in a slot.
  size_t Offset(int layer, size_t part) const { return parts.recurrent_at[size_t(layer)] + part; }
};

// The mixers, between the norm of a layer and its output product: normed() to mixed().
absl::Status CudaMixGated(const CudaBlockPass& p, const CudaLayer& layer, int index);
absl::Status CudaMixDelta(const CudaBlockPass& p, const CudaLayer& layer, int index);
absl::Status CudaMixMamba2(const CudaBlockPass& p, const CudaLayer& layer, int index);
absl::Status CudaMixShortConv(const CudaBlockPass& p, const CudaLayer& layer, int index);
absl::Status CudaMixSoftmax(const CudaBlockPass& p, const CudaSoftmaxLayer& layer, int index);
// The mixer with the norm before it: x to mixed().
absl::Status CudaMixRwkv7(const CudaBlockPass& p, const CudaLayer& layer, int index,
                          const float* x);
// The first half of RWKV-7's feed-forward, with the norm before it: x to fed().
absl::Status CudaFeedRwkv7(const CudaBlockPass& p, const CudaLayer& layer, int index,
                           const float* x);

}  // namespace rivulet
