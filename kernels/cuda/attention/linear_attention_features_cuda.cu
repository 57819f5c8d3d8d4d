// SPDX-License-Identifier: Apache-2.0
//   q = phi(query), k = a phi(key), g, a = sigmoid(+-gate)      of all tokens and heads
//
// The part of long segments that needs no state (linear_attention_prefill_cuda.cu).
#include <cstdint>

#include "kernels/cuda/attention/feature_map_cuda.h"
#include "kernels/cuda/attention/linear_attention_shape_cuda.h"

namespace rivulet::kernels {
namespace {

constexpr int kThreads = 128, kTokens = 8, kAtOnce = 4;

// x of a head's queries and keys of some tokens -> phi, naturally ordered, in shared memory.
// Vectors 2 t and 2 t + 1 are query and key of token t. A column of omega is read once for kAtOnce.
__device__ __forceinline__ void Project(const CudaAttentionArgs& p, int head, int vectors,
                                        const float* x, float* square, float* phi) {
  const int key_dim = p.map.key_dim, columns = p.map.columns;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < vectors; i += kThreads) {
    float sum = 0;
    for (int k = 0; k < key_dim; ++k) sum = fmaf(x[i * key_dim + k], x[i * key_dim + k], sum);
    square[i] = sum;
  }
  __syncthreads();
  const float* __restrict__ omega = p.map.omega + static_cast<size_t>(head) * p.omega_per_head;
  const int batches = (vectors + kAtOnce - 1) / kAtOnce;
  for (int i = thread; i < batches * columns; i += kThreads) {
    const int c = i % columns, first = i / columns * kAtOnce;
    float u[kAtOnce] = {};
    for (int k = 0; k < key_dim; ++k) {
      const float w = __ldg(omega + At(k, columns, c));
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) u[j] = fmaf(x[(first + j) * key_dim + k], w, u[j]);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (first + j >= vectors) break;
      FeaturesOf(p.map, u[j], square[first + j], c, phi + (first + j) * p.layout.features);
    }
  }
  __syncthreads();
}

// The features of one head of kTokens tokens. `groups` is a power of two.
__device__ __forceinline__ void TokenFeatures(const CudaAttentionArgs& p, int groups, int first_row,
                                              int head) {
  const int features = p.layout.features, key_dim = p.map.key_dim, heads = p.layout.heads;
  const int group = features / groups, thread = static_cast<int>(threadIdx.x);
  const int left = p.rows - first_row, tokens = left < kTokens ? left : kTokens;
  const bool elu = p.map.kind == FeatureMapKind::kElu;
  const int ld = FeatureFloats(p.layout);
  auto* factor = static_cast<float*>(SharedMemory());  // [kTokens] a
  float* square = factor + kTokens;                    // [2 kTokens]
  float* x = square + 2 * kTokens;                     // [2 kTokens][key_dim]
  float* phi = x + 2 * kTokens * key_dim;              // [2 kTokens][features]
  if (thread < tokens) {
    const int row = first_row + thread;
    GateFactors gate = {1, 1};
    if (p.gated) {
      gate = GateOf(p.qkv[At(row, p.ld_qkv, heads * (2 * key_dim + p.layout.value_dim) + head)]);
    }
    factor[thread] = gate.a;
    p.features[At(row, ld, 2 * heads * features + head)] = gate.g;
  }
  // Vectors beyond the last token are zeros; nothing reads their features.
  for (int i = thread; i < 2 * kTokens * key_dim; i += kThreads) {
    const int vector = i / key_dim, d = i % key_dim, row = first_row + vector / 2;
    x[i] = vector >= 2 * tokens
               ? 0.0f
               : p.qkv[At(row, p.ld_qkv, (vector % 2 * heads + head) * key_dim + d)];
  }
  __syncthreads();
  if (!elu) Project(p, head, 2 * tokens, x, square, phi);
  for (int i = thread; i < 2 * tokens * features; i += kThreads) {
    const int vector = i / features, place = i % features;
    const int f = place % group * groups + place / group;
    const float v = elu ? EluFeature(x[vector * features + f]) : phi[vector * features + f];
    // Without a gate the factor is 1, and the product is v.
    p.features[At(first_row + vector / 2, ld, (2 * head + vector % 2) * features + place)] =
        vector % 2 == 1 ? factor[vector / 2] * v : v;
  }
}

__global__ void __launch_bounds__(kThreads) AttentionFeatures(CudaAttentionArgs p, int groups) {
  WaitForPredecessor();
  const int heads = p.layout.heads, block = static_cast<int>(blockIdx.x);
  const int token_blocks = (p.rows + kTokens - 1) / kTokens;
  if (block < token_blocks * heads) {
    TokenFeatures(p, groups, block / heads * kTokens, block % heads);
    return;
  }
  // z of one segment, all heads.
  const int index = block - token_blocks * heads;
  const float* z = p.states +
                   static_cast<size_t>(p.segments[index].slot) * p.layout.floats_per_slot() +
                   p.layout.z_offset(p.layer, 0);
  if (p.segments[index].num_rows == 0) return;
  for (int i = static_cast<int>(threadIdx.x); i < heads * p.layout.features; i += kThreads) {
    p.features[At(p.rows + index, FeatureFloats(p.layout), i)] = z[i];
  }
}

}  // namespace

int AttentionFeatureFloats(const StateLayout& layout) { return FeatureFloats(layout); }

cudaError_t PrepareAttentionFeatures() { return PrepareKernels(AttentionFeatures); }

cudaError_t StartAttentionFeatures(const CudaLaunch& launch, const CudaAttentionArgs& args,
                                   int groups) {
  const int64_t token_blocks = (int64_t{args.rows} + kTokens - 1) / kTokens;
  const int64_t blocks = token_blocks * args.layout.heads + args.num_long;
  const int floats = 3 * kTokens + 2 * kTokens * (args.map.key_dim + args.layout.features);
  return LaunchBlocks(launch, AttentionFeatures, blocks, kThreads,
                      static_cast<size_t>(floats) * sizeof(float), args, groups);
}

}  // namespace rivulet::kernels
