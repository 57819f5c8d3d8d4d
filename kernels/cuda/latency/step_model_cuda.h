// SPDX-License-Identifier: Apache-2.0
// A whole model, for kernels that run whole steps, from embedding to sampling: latency_cuda.h.
#pragma once

#include "kernels/cuda/attention/linear_attention_cuda.h"
#include "kernels/cuda/gemm/gemm_cuda.h"
#include "kernels/cuda/rows/embed_cuda.h"

namespace rivulet::kernels {

struct StepNorm {
  const float* weight = nullptr;  // [hidden]; null: no norm
  const float* bias = nullptr;
};

struct StepLayer {
  CudaMatrix qkv, out, ffn1, ffn2;  // F16
  StepNorm norm1, norm2;
  const float* omega = nullptr;
};

// A model with post-norm layers: x = norm1(x + attention(x)); x = norm2(x + ffn(x)).
struct StepModel {
  const StepLayer* layers = nullptr;  // device memory, [layout.layers]
  int hidden = 0, ffn = 0;
  Epilogue activation = Epilogue::kRelu;
  float norm_eps = 0;
  StepNorm final_norm;
  CudaMatrix head;              // float32
  CudaEmbedArgs embed;          // tables; tokens, positions, rows and out are not used
  CudaAttentionArgs attention;  // layout, map (without omega), gate, normalizer, states; the rest
                                // is not used
};

}  // namespace rivulet::kernels
