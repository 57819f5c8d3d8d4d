// SPDX-License-Identifier: Apache-2.0
// Softmax attention on the device (kernels/cuda/attention/softmax_attention_cuda.h): the arguments
// of a layer's launch that depend on the model, its slots and the pass.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/attention/softmax_attention_cuda.h"
#include "model/config.h"
#include "model/cuda/cuda_network.h"
#include "model/cuda/cuda_scratch.h"
#include "model/cuda/cuda_slots.h"

namespace rivulet {

// OK, or UNIMPLEMENTED (MODEL_UNSUPPORTED) naming the size for which there is no kernel, or
// INVALID_ARGUMENT (OPTION_OUT_OF_RANGE) if keys and values are to be not float32.
absl::Status CheckCudaSoftmax(const ModelConfig& config, kernels::CacheType cache);

// Heads of queries. REQUIRES: the model has softmax attention.
int QueryHeads(const ModelConfig& config);

// All arguments except the columns of q, k and v, the output and the scales.
kernels::CudaSoftmaxAttentionArgs CudaSoftmaxAttention(const ModelConfig& config,
                                                       const StateParts& parts, float* states,
                                                       size_t floats_per_slot,
                                                       const CudaScratch& scratch,
                                                       const CudaPass& pass, int layer);

}  // namespace rivulet
