// SPDX-License-Identifier: Apache-2.0
// Linear attention for states of any shape (linear_attention_cuda.h has the equation and the shapes
// with a kernel of their own). Included by linear_attention*_cuda.cu only.
#pragma once

#include "kernels/cuda/attention/linear_attention_cuda.h"

namespace rivulet::kernels {

// The number of columns of S that shared memory holds at once; 0: not even one.
int GenericAttentionColumns(const StateLayout& layout, const FeatureMapArgs& map);
cudaError_t PrepareGenericAttention();
cudaError_t StartGenericAttention(const CudaLaunch& launch, const CudaAttentionArgs& args);

}  // namespace rivulet::kernels
