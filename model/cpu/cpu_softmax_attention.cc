// SPDX-License-Identifier: Apache-2.0
// Softmax attention (kernels/softmax_attention.h) over what a sequence's slot has kept.
#include <cmath>

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
  args.ring = kept.ring();
  args.cache = segment.state + (args.ring == 0 ? p.parts.fixed_floats : 0) +
               p.parts.kept_at[size_t(layer)] +
               size_t(head) * kernels::CacheFloats(kept.key_dim, kept.value_dim);
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

}  // namespace rivulet
