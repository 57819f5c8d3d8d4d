// SPDX-License-Identifier: Apache-2.0
// Softmax attention (kernels/softmax_attention.h) over what a sequence's slot has kept.
#include <cmath>
#include <vector>

#include "model/cpu/cpu_pass.h"

namespace rivulet {

kernels::SoftmaxAttentionArgs KeptHead(const CpuPass& p, const CpuSegment& segment, int layer,
                                       int head, int queries) {
  const AttentionPart& kept = *p.parts.attention;
  kernels::SoftmaxAttentionArgs args;
  args.tokens = int(segment.tokens.size());
  args.key_dim = kept.key_dim;
  args.value_dim = kept.value_dim;
  args.queries = queries;
  args.position = segment.position;
  args.window = kept.window;
  args.type = kept.type;
  args.ring = kept.ring();
  args.cache = segment.state + (args.ring == 0 ? p.parts.fixed_floats : 0) +
               p.parts.kept_at[size_t(layer)] +
               size_t(head) * kernels::CacheFloats(kept.key_dim, kept.value_dim, kept.type);
  args.block_stride = args.ring == 0 ? p.parts.block_floats : kept.floats_per_block();
  args.scratch = p.a.scratch.attention[size_t(p.thread)].floats();
  return args;
}

void MixSoftmax(const CpuPass& p, int index) {
  const size_t ld = size_t(p.a.in.ld);
  p.ForEachHead([&](const CpuSegment& segment, int row, int head) {
    kernels::SoftmaxAttentionArgs args = KeptHead(p, segment, index, head, 1);
    const float* const in = p.a.in.row(row);
    args.q = {in + p.columns.q + head * p.config.key_dim, ld};
    args.k = {in + p.columns.k + head * p.config.key_dim, ld};
    args.v = {in + p.columns.v + head * p.config.value_dim, ld};
    args.scale = 1 / std::sqrt(float(p.config.key_dim));
    args.y = p.a.o.row(row) + head * p.config.value_dim;
    args.y_stride = size_t(p.a.o.ld);
    kernels::SoftmaxAttentionCpu(args);
  });
}

namespace {

// One head of keys and values.
void AttendHead(const CpuPass& p, const CpuLayer& layer, int index, const CpuSegment& segment,
                int row, int head) {
  const SoftmaxConfig& softmax = *p.config.block().softmax;
  const InputColumns& columns = p.weights.softmax_columns;
  const int dim = softmax.head_dim, ld = p.a.in.ld,
            queries = softmax.num_heads / softmax.num_kv_heads;
  kernels::SoftmaxAttentionArgs args = KeptHead(p, segment, index, head, queries);
  float* const in = p.a.in.row(row);
  float* const q = in + columns.q + head * queries * dim;
  float* const k = in + columns.k + head * dim;
  const auto prepare = [&](const std::vector<float>& norm, float* x) {
    if (softmax.head_norm) NormHead(p, norm, x, ld, args.tokens);
    Rotate(p, x, ld, row, args.tokens);
  };
  for (int i = 0; i < queries; ++i) prepare(layer.q_norm, q + i * dim);
  prepare(layer.k_norm, k);
  args.q = {q, size_t(ld)};
  args.k = {k, size_t(ld)};
  args.v = {in + columns.v + head * dim, size_t(ld)};
  args.scale = softmax.scale;
  args.y = p.a.o.row(row) + head * queries * dim;
  args.y_stride = size_t(p.a.o.ld);
  kernels::SoftmaxAttentionCpu(args);
  if (softmax.gate) {
    GateHead(p, true, in + columns.gate + head * queries * dim, ld, queries * dim, args.y,
             args.tokens);
  }
  const float scale = softmax.output_scale;
  if (scale != 1) Scale(args.y, p.a.o.ld, queries * dim, args.tokens, scale);
}

}  // namespace

void MixSoftmaxHeads(const CpuPass& p, const CpuLayer& layer, int index) {
  p.InputProduct(layer, p.a.h);
  p.Wait();
  p.ForEachOf(p.config.block().softmax->num_kv_heads,
              [&](const CpuSegment& segment, int row, int head) {
                AttendHead(p, layer, index, segment, row, head);
              });
  p.Wait();
}

}  // namespace rivulet
