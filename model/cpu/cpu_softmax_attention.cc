// SPDX-License-Identifier: Apache-2.0
// Softmax attention (kernels/softmax_attention.h) over the keys and values in a sequence's slot.
#include <algorithm>
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
               p.parts.cache_offset[size_t(layer)] +
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
    p.Update(segment, index, head, args);
  });
}

namespace {

// One head of keys and values of a segment whose first row is `row`.
struct KeyHead {
  const CpuSegment& segment;
  int row, head;
};

kernels::SoftmaxAttentionArgs HeadArgs(const CpuPass& p, int index, const KeyHead& of) {
  const SoftmaxConfig& softmax = *p.config.block().softmax;
  const InputColumns& columns = p.weights.softmax_columns;
  const int dim = softmax.head_dim, queries = softmax.num_heads / softmax.num_kv_heads;
  kernels::SoftmaxAttentionArgs args = KeptHead(p, of.segment, index, of.head, queries);
  const float* const in = p.a.in.row(of.row);
  args.q = {in + columns.q + of.head * queries * dim, size_t(p.a.in.ld)};
  args.k = {in + columns.k + of.head * dim, size_t(p.a.in.ld)};
  args.v = {in + columns.v + of.head * dim, size_t(p.a.in.ld)};
  args.scale = softmax.scale;
  args.y = p.a.o.row(of.row) + of.head * queries * dim;
  args.y_stride = size_t(p.a.o.ld);
  return args;
}

// Norms and turns the head's queries and keys, in place.
void PrepareHead(const CpuPass& p, const LayerWeights& layer, const KeyHead& of, int queries) {
  const SoftmaxConfig& softmax = *p.config.block().softmax;
  const InputColumns& columns = p.weights.softmax_columns;
  const int dim = softmax.head_dim, tokens = int(of.segment.tokens.size());
  float* const in = p.a.in.row(of.row);
  const auto prepare = [&](const std::vector<float>& norm, float* x) {
    if (softmax.head_norm) NormHead(p, norm, x, p.a.in.ld, tokens);
    Rotate(p, x, p.a.in.ld, of.row, tokens);
  };
  for (int i = 0; i < queries; ++i) {
    prepare(layer.q_norm, in + columns.q + (of.head * queries + i) * dim);
  }
  prepare(layer.k_norm, in + columns.k + of.head * dim);
}

// Gates and scales the outputs of `count` heads of queries from `query` on.
void FinishQueries(const CpuPass& p, const KeyHead& of, int query, int count) {
  const SoftmaxConfig& softmax = *p.config.block().softmax;
  const int dim = softmax.head_dim, tokens = int(of.segment.tokens.size());
  float* const y = p.a.o.row(of.row) + query * dim;
  if (softmax.gate) {
    const float* const gate = p.a.in.row(of.row) + p.weights.softmax_columns.gate + query * dim;
    GateHead(p, true, gate, p.a.in.ld, count * dim, y, tokens);
  }
  const float scale = softmax.output_scale;
  if (scale != 1) Scale(y, p.a.o.ld, count * dim, tokens, scale);
}

// The largest number of blocks of a segment.
int64_t MostBlocks(const CpuPass& p) {
  int64_t most = 0;
  for (const CpuSegment& segment : p.piece) {
    most = std::max(most, kernels::CacheBlocks(segment.position + 1));
  }
  return most;
}

// Whether threads share a head's blocks: in a step with fewer heads than threads and long contexts.
bool SharesBlocks(const CpuPass& p) {
  return int(p.piece.size()) * p.config.block().softmax->num_kv_heads < p.threads &&
         TokenRows(p.piece) == int(p.piece.size()) && MostBlocks(p) >= p.threads;
}

// Threads share the blocks of all heads, kSharedBlocks of each head at a time, then join them by
// query.
void MixSharedBlocks(const CpuPass& p, const LayerWeights& layer, int index) {
  const SoftmaxConfig& softmax = *p.config.block().softmax;
  const int heads = softmax.num_kv_heads, queries = softmax.num_heads / heads;
  const size_t part = kernels::SoftmaxPartFloats(queries, softmax.head_dim),
               of_head = SharedPartFloats(queries, softmax.head_dim);
  const auto parts_of = [&](const KeyHead& of) {
    const auto segment = &of.segment - p.piece.data();
    return p.a.scratch.parts.floats() + size_t(segment * heads + of.head) * of_head;
  };
  p.ForEachOf(heads, [&](const CpuSegment& segment, int row, int head) {
    PrepareHead(p, layer, {segment, row, head}, queries);
    kernels::SoftmaxKeepCpu(HeadArgs(p, index, {segment, row, head}));
  });
  p.Wait();
  const int64_t blocks = MostBlocks(p);
  for (int64_t first = 0; first < blocks; first += kSharedBlocks) {
    const auto end_of = [&](const CpuSegment& segment) {
      return std::min(first + kSharedBlocks, kernels::CacheBlocks(segment.position + 1));
    };
    int64_t turn = 0;
    for (size_t i = 0; i < p.piece.size() * size_t(heads); ++i) {
      const int row = int(i) / heads;  // one token per row
      const KeyHead of = {p.piece[size_t(row)], row, int(i) % heads};
      const kernels::SoftmaxAttentionArgs args = HeadArgs(p, index, of);
      for (int64_t block = first; block < end_of(of.segment); ++block) {
        if (turn++ % p.threads != p.thread) continue;
        const int64_t next = block + p.threads < end_of(of.segment) ? block + p.threads : -1;
        kernels::SoftmaxPartCpu(args, block, parts_of(of) + size_t(block - first) * part, next);
      }
    }
    p.Wait();
    p.ForEachOf(heads * queries, [&](const CpuSegment& segment, int row, int query) {
      const KeyHead of = {segment, row, query / queries};
      const int64_t end = end_of(segment);
      if (first >= end) return;
      float* const parts = parts_of(of);
      float* const so_far = parts + kSharedBlocks * part + 2 * (query % queries);
      kernels::SoftmaxJoinCpu(HeadArgs(p, index, of), query % queries, first, end, parts, so_far);
      if (end == kernels::CacheBlocks(segment.position + 1)) FinishQueries(p, of, query, 1);
    });
    p.Wait();
  }
}

}  // namespace

void MixSoftmaxHeads(const CpuPass& p, const LayerWeights& layer, int index) {
  p.InputProduct(layer, p.a.h);
  p.Wait();
  if (SharesBlocks(p)) return MixSharedBlocks(p, layer, index);
  const SoftmaxConfig& softmax = *p.config.block().softmax;
  const int queries = softmax.num_heads / softmax.num_kv_heads;
  p.ForEachOf(softmax.num_kv_heads, [&](const CpuSegment& segment, int row, int head) {
    const KeyHead of = {segment, row, head};
    PrepareHead(p, layer, of, queries);
    p.Update(segment, index, head, HeadArgs(p, index, of));
    FinishQueries(p, of, head * queries, queries);
  });
  p.Wait();
}

}  // namespace rivulet
