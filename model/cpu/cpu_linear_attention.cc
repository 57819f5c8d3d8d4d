// SPDX-License-Identifier: Apache-2.0
// The embedding of kinds "linear" and "softmax" (model/FORMAT.md), and the attention of kind
// "linear" (kernels/linear_attention.h).
#include <algorithm>
#include <vector>

#include "kernels/embed.h"
#include "kernels/linear_attention.h"
#include "model/cpu/cpu_pass.h"
#include "model/loading/encoder_weights.h"

namespace rivulet {

void EmbedWithPosition(const CpuPass& p) {
  const PackedWeights& weights = p.weights;
  kernels::EmbedArgs args;
  args.tokens = weights.tokens.data();
  args.columns = p.config.embedding_columns();
  args.ld = p.x.ld;
  args.concat = p.encoder->combine == PositionCombine::kConcat;
  const bool positions = p.encoder->has_position_rows();
  if (positions) args.position_columns = args.columns;
  std::vector<float> late;
  p.ForEachToken([&](int row, int32_t token, int64_t position) {
    if (positions && position < weights.position_rows) {
      args.positions = weights.positions.data() + size_t(position) * size_t(args.columns);
    } else if (positions) {
      late.resize(size_t(args.columns));
      kernels::SinusoidalPosition(position, args.columns, late.data());
      args.positions = late.data();
    }
    kernels::EmbedCpu(args, token, p.x.row(row));
  });
}

// Heads of segments are independent; each thread takes a contiguous share of (segment, head), so
// that only one thread touches a state, which stays in its cache.
void MixLinear(const CpuPass& p, const LayerWeights& layer, int index) {
  const kernels::StateLayout layout = p.config.state_layout();
  const int heads = p.config.num_heads;
  const IndexRange range = ShareOf(int(p.piece.size()) * heads, p.thread, p.threads);
  const size_t omega_per_head = OmegaFloatsPerHead(p.config);
  kernels::LinearAttentionArgs args;
  args.map = p.weights.feature_map;
  args.features = layout.features;
  args.value_dim = p.config.value_dim;
  args.ld = size_t(p.a.in.ld);
  args.ld_out = size_t(p.a.o.ld);
  args.clamp = p.encoder->normalizer == Normalizer::kClampMin;
  args.normalizer = p.encoder->normalizer_value;
  args.scratch = p.a.scratch.attention[size_t(p.thread)].floats();
  int row = 0;
  for (int i = 0; i < int(p.piece.size()); ++i) {
    const CpuSegment& segment = p.piece[size_t(i)];
    args.tokens = int(segment.tokens.size());
    const int first = std::max(range.begin - i * heads, 0),
              last = std::min(range.end - i * heads, heads);
    for (int h = first; h < last; ++h) {
      float* const in = p.a.in.row(row);
      Rotate(p, in + p.columns.q + h * p.config.key_dim, p.a.in.ld, row, args.tokens);
      Rotate(p, in + p.columns.k + h * p.config.key_dim, p.a.in.ld, row, args.tokens);
      args.map.omega = layer.omega.data() + size_t(h) * omega_per_head;
      args.query = in + p.columns.q + h * p.config.key_dim;
      args.key = in + p.columns.k + h * p.config.key_dim;
      args.value = in + p.columns.v + h * p.config.value_dim;
      args.gate = p.columns.gate < 0 ? nullptr : in + p.columns.gate + h;
      args.out = p.a.o.row(row) + size_t(h * p.config.value_dim);
      args.s = segment.state + layout.s_offset(index, h);
      args.z = segment.state + layout.z_offset(index, h);
      const bool last_head = h + 1 == heads;
      const CpuSegment* after = i + 1 < int(p.piece.size()) ? &segment + 1 : nullptr;
      args.next_s = !last_head         ? args.s + layout.s_floats_per_head()
                    : after == nullptr ? nullptr
                                       : after->state + layout.s_offset(index, 0);
      p.Update(segment, index, h, args);
    }
    row += args.tokens;
  }
}

}  // namespace rivulet
