// SPDX-License-Identifier: Apache-2.0
#include "model/cpu/block_forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/activation.h"
#include "kernels/group_norm.h"
#include "kernels/rms_norm.h"
#include "model/cpu/block_pass.h"

namespace rivulet {
namespace {

using kernels::PaddedColumns;

// y = norm(x) of `count` rows: with a bias a layer norm, else of root mean squares.
void NormRows(const ModelConfig& c, const std::vector<float>& weight,
              const std::vector<float>& bias, const float* x, float* y, int ld, int count) {
  if (bias.empty()) {
    kernels::RmsNormArgs args;
    args.x = x;
    args.y = y;
    args.weight = weight.data();
    args.x_stride = args.y_stride = size_t(ld);
    args.rows = count;
    args.size = c.hidden_size;
    args.eps = c.norm_eps;
    return kernels::RmsNormCpu(args);
  }
  kernels::GroupNormArgs args;  // of one group
  args.x = x;
  args.y = y;
  args.weight = weight.data();
  args.bias = bias.data();
  args.x_stride = args.y_stride = size_t(ld);
  args.rows = count;
  args.size = c.hidden_size;
  args.eps = c.norm_eps;
  kernels::GroupNormCpu(args);
}

// This thread's rows of h = norm(x).
void Norm(const BlockPass& p, const std::vector<float>& weight, const std::vector<float>& bias) {
  const IndexRange range = p.RowShare();
  NormRows(p.config, weight, bias, p.a.x.row(range.begin), p.a.h.row(range.begin), p.a.x.ld,
           range.end - range.begin);
}

// Rows of the embedding, and the angles of their positions where the kind has any.
void Embed(const BlockPass& p, const BlockWeights& weights) {
  const IndexRange range = p.RowShare();
  const int half = p.config.key_dim / 2;
  int row = 0;
  for (const CpuSegment& segment : p.piece) {
    for (size_t t = 0; t < segment.tokens.size(); ++t, ++row) {
      if (row < range.begin || row >= range.end) continue;
      kernels::UnpackColumn(weights.embedding.packed, segment.tokens[t], p.a.x.row(row));
      if (p.a.rope.data == nullptr) continue;
      for (int i = 0; i < half; ++i) {
        // In double: positions have no end.
        const double angle =
            double(segment.position + int64_t(t)) * weights.rope_frequencies[size_t(i)];
        p.a.rope.row(row)[i] = float(std::cos(angle));
        p.a.rope.row(row)[half + i] = float(std::sin(angle));
      }
    }
  }
  const std::vector<float>* norm =
      weights.layers[0].rwkv7 == nullptr ? nullptr : &weights.layers[0].rwkv7->first_norm;
  if (norm == nullptr || norm->empty()) return;
  NormRows(p.config, *norm, weights.layers[0].rwkv7->first_norm_bias, p.a.x.row(range.begin),
           p.a.x.row(range.begin), p.a.x.ld, range.end - range.begin);
}

void Mix(const BlockPass& p, const BlockLayer& layer, int index) {
  switch (p.kind().mixer) {
    case Mixer::kGated:
      return MixGated(p, layer, index);
    case Mixer::kDelta:
      return MixDelta(p, layer, index);
    case Mixer::kMamba2:
      return MixMamba2(p, layer, index);
    case Mixer::kRwkv7:
      return MixRwkv7(p, layer, index);
  }
}

// ffn = silu(gate h) * (up h).
void FeedSwiglu(const BlockPass& p, const BlockLayer& layer) {
  p.Product(layer.up, p.a.h.data, p.a.h.ld, p.a.ffn.data, p.a.ffn.ld, p.rows);
  p.Wait();
  const IndexRange range = p.RowShare();
  kernels::ActivationArgs args;
  args.kind = kernels::Activation::kSilu;
  args.rows = range.end - range.begin;
  args.n = p.config.ffn_size;
  args.x = args.y = p.a.ffn.row(range.begin);
  args.times = args.x + PaddedColumns(p.config.ffn_size);
  args.x_stride = args.times_stride = args.y_stride = size_t(p.a.ffn.ld);
  kernels::ActivationCpu(args);
  p.Wait();
}

// x += mix(norm(x)); x += ffn(norm(x)).
void Layer(const BlockPass& p, const BlockLayer& layer, int index) {
  Norm(p, layer.norm1, layer.norm1_bias);
  p.Wait();
  Mix(p, layer, index);
  p.Product(layer.out, p.a.o.data, p.a.o.ld, p.a.x.data, p.a.x.ld, p.rows,
            kernels::Epilogue::kResidual);
  p.Wait();
  if (p.config.ffn_size == 0) return;
  Norm(p, layer.norm2, layer.norm2_bias);
  p.Wait();
  if (p.kind().mixer == Mixer::kRwkv7) {
    FeedRwkv7(p, layer, index);
  } else {
    FeedSwiglu(p, layer);
  }
  p.Product(layer.down, p.a.ffn.data, p.a.ffn.ld, p.a.x.data, p.a.x.ld, p.rows,
            kernels::Epilogue::kResidual);
  p.Wait();
}

// Head outputs of the rows that want them: one of a whole prompt.
void Head(const BlockPass& p, const BlockWeights& weights) {
  const int outputs = OutputRows(p.piece);
  if (outputs == 0) return;
  const IndexRange range = ShareOf(outputs, p.thread, p.threads);
  int row = 0, output = 0;
  for (const CpuSegment& segment : p.piece) {
    const size_t last = segment.tokens.size() - 1;
    for (size_t t = 0; t <= last; ++t, ++row) {
      if (!segment.all_outputs && !(segment.last_output && t == last)) continue;
      if (output >= range.begin && output < range.end) {
        NormRows(p.config, weights.final_norm, weights.final_norm_bias, p.a.x.row(row),
                 p.a.kept.row(output), p.a.x.ld, 1);
      }
      ++output;
    }
  }
  p.Wait();
  const bool tied = weights.head.packed.panels == nullptr;
  p.Product(tied ? weights.embedding : weights.head, p.a.kept.data, p.a.kept.ld, p.a.outputs.data,
            p.a.outputs.ld, outputs);
  p.Wait();
}

}  // namespace

BlockActivations::BlockActivations(const ModelConfig& c, const BlockWeights& weights, int rows) {
  const BlockKind& kind = *c.block().kind;
  const bool rwkv7 = kind.mixer == Mixer::kRwkv7, mamba2 = kind.mixer == Mixer::kMamba2;
  const int hidden = PaddedColumns(c.hidden_size),
            keys = PaddedColumns(std::max(c.keys(), c.num_heads)),
            values = PaddedColumns(c.values());
  int low_columns = 0;
  for (const BlockLayer& layer : weights.layers) {
    if (layer.rwkv7 == nullptr) continue;
    int columns = 0;
    for (const LowRank* lora :
         {&layer.rwkv7->w, &layer.rwkv7->a, &layer.rwkv7->g, &layer.rwkv7->v_mix}) {
      columns += PaddedColumns(lora->first.packed.n);
    }
    low_columns = std::max(low_columns, columns);
  }
  // One list, walked twice: to add up the sizes, then to place the arrays.
  const std::pair<Array*, int> arrays[] = {
      {&x, hidden},
      {&h, hidden},
      {&in, rwkv7 ? 3 * hidden : PaddedColumns(weights.columns.n)},
      {&conv, PaddedColumns(c.block().conv_channels)},
      {&decay, keys},
      {&rate, rwkv7 ? keys : 0},
      {&gate, rwkv7 || kind.low_rank_gate ? values : 0},
      {&low, low_columns},
      {&value, rwkv7 || mamba2 ? values : 0},
      {&first, rwkv7 ? values : 0},
      {&removal, rwkv7 ? 2 * c.keys() : 0},
      {&o, values},
      {&mix, rwkv7 ? 6 * hidden : 0},
      {&ffn, rwkv7 ? PaddedColumns(c.ffn_size) : 2 * PaddedColumns(c.ffn_size)},
      {&rope, kind.rotary ? c.key_dim : 0},
      {&kept, hidden},
      {&outputs, PaddedColumns(c.vocab_size)}};
  size_t floats = 0;
  for (const auto& [array, ld] : arrays) floats += size_t(rows) * size_t(ld);
  memory_ = AlignedBuffer(floats * sizeof(float));
  float* next = memory_.floats();
  for (const auto& [array, ld] : arrays) {
    if (ld > 0) *array = {next, ld};
    next += size_t(rows) * size_t(ld);
  }
}

std::unique_ptr<CpuActivations> BlockForward::NewActivations(int max_rows, int /*threads*/) const {
  return std::make_unique<BlockActivations>(config_, *weights_, max_rows);
}

void BlockForward::Pass(std::span<const CpuSegment> piece, CpuActivations& activations, int thread,
                        int threads, SpinBarrier& barrier) const {
  const BlockPass pass{config_,   state_,
                       *weights_, weights_->columns,
                       piece,     static_cast<BlockActivations&>(activations),
                       thread,    threads,
                       barrier,   TokenRows(piece)};
  Embed(pass, *weights_);
  pass.Wait();
  for (int i = 0; i < config_.num_layers; ++i) Layer(pass, weights_->layers[size_t(i)], i);
  Head(pass, *weights_);
}

}  // namespace rivulet
