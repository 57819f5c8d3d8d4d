// SPDX-License-Identifier: Apache-2.0
// Launch arguments that depend only on the model: tables, layout, slots, ring, head outputs.
#pragma once

#include "kernels/cuda/attention/linear_attention_cuda.h"
#include "kernels/cuda/rows/embed_cuda.h"
#include "kernels/cuda/sample/sample_cuda.h"
#include "kernels/gemm.h"
#include "kernels/mixer_rows.h"
#include "model/config.h"
#include "model/cuda/cuda_network.h"
#include "model/cuda/cuda_outputs.h"
#include "model/cuda/cuda_records.h"
#include "model/cuda/cuda_scratch.h"
#include "model/cuda/cuda_slots.h"
#include "model/cuda/cuda_weights.h"

namespace rivulet {

kernels::CudaEmbedArgs CudaEmbedding(const ModelConfig& config, const CudaWeights& weights);
// All but heads, key_heads and key_dim. `columns`: of `in`, the output of the layer's input
// product.
kernels::RotateHeadsArgs CudaRotation(const CudaWeights& weights, const InputColumns& columns,
                                      const CudaScratch::Array& in, const CudaPass& pass);
kernels::CudaAttentionArgs CudaAttention(const ModelConfig& config, const CudaSlots& slots);
kernels::CudaSampleArgs CudaSampling(const ModelConfig& config, const CudaSlots& slots,
                                     const CudaRecords& records, const CudaOutputs& outputs);
kernels::Epilogue CudaActivation(const ModelConfig& config);

}  // namespace rivulet
