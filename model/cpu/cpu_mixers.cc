// SPDX-License-Identifier: Apache-2.0
// The mixers whose keys and values come from one product: gated linear attention, the delta rules,
// Mamba-2. Equations: kernels/recurrence.h; this file adds the operations around them.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "kernels/activation.h"
#include "kernels/causal_conv.h"
#include "kernels/decay.h"
#include "kernels/recurrence.h"
#include "kernels/rms_norm.h"
#include "model/cpu/cpu_pass.h"

namespace rivulet {
namespace {

// x / sqrt(sum(x^2) + 1e-6) of `n` columns, times `weight` sqrt(n): an RMS norm with other
// constants.
void NormL2(const std::vector<float>& weight, float* x, int ld, int n, int count) {
  NormRows(weight, 1e-6f / float(n), x, ld, n, count);
}

kernels::RecurrenceArgs Recurrence(const CpuPass& p, const CpuSegment& segment, int index, int row,
                                   int head) {
  kernels::RecurrenceArgs args;
  args.tokens = int(segment.tokens.size());
  args.key_dim = p.config.key_dim;
  args.value_dim = p.config.value_dim;
  args.s = p.S(segment, index, head);
  args.y = p.a.o.row(row) + head * p.config.value_dim;
  args.y_stride = size_t(p.a.o.ld);
  return args;
}

// GLA: w = sigmoid(x)^(1/16); x is in `decay`.
void SetLowRankDecay(const CpuPass& p, const LayerWeights& layer, int row, int head,
                     kernels::RecurrenceArgs* args) {
  const int keys = p.config.key_dim;
  kernels::DecayArgs decay;
  decay.kind = kernels::DecayKind::kSoftplus;
  decay.negate = true;
  decay.rows = args->tokens;
  decay.n = keys;
  decay.x = decay.y = p.a.decay.row(row) + head * keys;
  decay.scale = &layer.decay_scale[size_t(head * keys)];
  if (p.config.block().gate_floor) decay.floor = *p.config.block().gate_floor;
  decay.x_stride = decay.y_stride = size_t(p.a.decay.ld);
  kernels::DecayCpu(decay);
  args->w_dim = keys;
  args->w = {decay.y, decay.y_stride};
}

// HGRN2: w = lb + (1 - lb) sigmoid(f), k = 1 - w, q = silu(q).
void SetBoundDecay(const CpuPass& p, const LayerWeights& layer, int row, int head,
                   kernels::RecurrenceArgs* args) {
  const int keys = p.config.key_dim, ld = p.a.in.ld;
  float* q = p.a.in.row(row) + p.columns.q + head * keys;
  float* k = p.a.in.row(row) + p.columns.k + head * keys;
  float* w = p.a.decay.row(row) + head * keys;
  const float* bound = &layer.lower_bound[size_t(head * keys)];
  Activate(kernels::Activation::kSilu, q, ld, keys, args->tokens);
  Activate(kernels::Activation::kSigmoid, k, ld, keys, args->tokens);
  for (int t = 0; t < args->tokens; ++t) {
    float* const key = k + size_t(t) * size_t(ld);
    float* const factor = w + size_t(t) * size_t(p.a.decay.ld);
    for (int i = 0; i < keys; ++i) {
      factor[i] = bound[i] + (1 - bound[i]) * key[i];
      key[i] = 1 - factor[i];
    }
  }
  args->w_dim = keys;
  args->w = {w, size_t(p.a.decay.ld)};
}

// w of gated linear attention, and its changes of q and k.
void SetDecay(const CpuPass& p, const LayerWeights& layer, int row, int head,
              kernels::RecurrenceArgs* args) {
  switch (p.kind().decay) {
    case DecayForm::kFixed:
      args->w_dim = 1;
      args->w = {&layer.decay_scale[size_t(head)], 0};
      return;
    case DecayForm::kLowRank:
      return SetLowRankDecay(p, layer, row, head, args);
    case DecayForm::kLowerBound:
      return SetBoundDecay(p, layer, row, head, args);
    case DecayForm::kNone:
    case DecayForm::kOfHead:  // of other mixers
      return;
  }
}

// The norm over all heads together, with the eps of BlockKind::norm_all_heads.
void NormAllHeads(const CpuPass& p, const LayerWeights& layer) {
  const IndexRange range = p.RowShare();
  NormRows(layer.out_norm, 1e-5f, p.a.o.row(range.begin), p.a.o.ld, p.config.values(),
           range.end - range.begin);
}

// The convolution of channels `first` .. of `in`, into `conv`.
void Convolve(const CpuPass& p, const LayerWeights& layer, int index, int first, bool silu = true) {
  const int channels = p.config.block().conv_channels;
  p.ForEachSegment([&](const CpuSegment& segment, int row) {
    kernels::CausalConvArgs args;
    args.x = p.a.in.row(row) + first;
    args.weight = layer.conv.data();
    args.bias = layer.conv_bias.empty() ? nullptr : layer.conv_bias.data();
    args.y = p.a.conv.row(row);
    args.state = p.State(segment, index, p.state.conv);
    args.x_stride = size_t(p.a.in.ld);
    args.y_stride = size_t(p.a.conv.ld);
    args.tokens = int(segment.tokens.size());
    args.channels = channels;
    args.width = p.config.block().conv_width;
    args.silu = silu;
    if (segment.replay != nullptr) {
      segment.replay->Keep(
          index, InputPart::kConv,
          {args.state, args.width - 1, channels, args.tokens, args.x, args.x_stride});
    }
    kernels::CausalConvCpu(args);
  });
}

// w = exp(-exp(A_log) softplus(x + dt_bias)): one per head (Gated DeltaNet), or one per key (KDA).
void PrepareDeltaDecay(const CpuPass& p, const LayerWeights& layer, int row, int head,
                       kernels::RecurrenceArgs* args) {
  const bool vector = p.kind().decay == DecayForm::kLowRank;
  const int n = vector ? p.config.key_dim : 1;
  kernels::DecayArgs decay;
  decay.rows = args->tokens;
  decay.n = n;
  decay.y = p.a.decay.row(row) + head * n;
  decay.y_stride = size_t(p.a.decay.ld);
  decay.x = vector ? decay.y : p.a.in.row(row) + p.columns.dt + head;
  decay.x_stride = vector ? decay.y_stride : size_t(p.a.in.ld);
  decay.bias = &layer.decay_bias[size_t(head * n)];
  decay.scale = &layer.decay_scale[size_t(head * n)];
  kernels::DecayCpu(decay);
  args->w_dim = n;
  args->w = {decay.y, decay.y_stride};
}

}  // namespace

void Scale(float* x, int ld, int n, int count, float by) {
  for (int t = 0; t < count; ++t) {
    for (int i = 0; i < n; ++i) x[size_t(t) * size_t(ld) + size_t(i)] *= by;
  }
}

void Rotate(const CpuPass& p, float* x, int ld, int row, int count) {
  const RopeConfig& rope = p.weights.rope;
  const auto half = int(rope.frequencies.size());
  for (int t = 0; t < count && half > 0; ++t) {
    const float* cosine = p.a.rope.row(row + t);
    const float* sine = cosine + half;
    float* v = x + size_t(t) * size_t(ld);
    const auto turn = [&](int i, float& a, float& b) {
      const float first = a, second = b;
      a = first * cosine[i] - second * sine[i];
      b = second * cosine[i] + first * sine[i];
    };
    if (rope.interleaved) {
      for (int i = 0; i < half; ++i) turn(i, v[2 * i], v[2 * i + 1]);
    } else {
      for (int i = 0; i < half; ++i) turn(i, v[i], v[half + i]);
    }
  }
}

void Activate(kernels::Activation kind, float* x, int ld, int n, int count, const float* bias) {
  kernels::ActivationArgs args;
  args.kind = kind;
  args.rows = count;
  args.n = n;
  args.x = args.y = x;
  args.bias = bias;
  args.x_stride = args.y_stride = size_t(ld);
  kernels::ActivationCpu(args);
}

void NormRows(const std::vector<float>& weight, float eps, float* x, int ld, int size, int rows) {
  kernels::RmsNormArgs args;
  args.x = args.y = x;
  args.weight = weight.data();
  args.x_stride = args.y_stride = size_t(ld);
  args.rows = rows;
  args.size = size;
  args.eps = eps;
  kernels::RmsNormCpu(args);
}

void NormHead(const CpuPass& p, const std::vector<float>& weight, float* x, int ld, int count) {
  NormRows(weight, p.config.norm_eps, x, ld, int(weight.size()), count);
}

void GateHead(const CpuPass& p, bool sigmoid, const float* gate, int ld_gate, int n, float* o,
              int count) {
  kernels::ActivationArgs args;
  args.kind = sigmoid ? kernels::Activation::kSigmoid : kernels::Activation::kSilu;
  args.rows = count;
  args.n = n;
  args.x = gate;
  args.times = args.y = o;
  args.x_stride = size_t(ld_gate);
  args.times_stride = args.y_stride = size_t(p.a.o.ld);
  kernels::ActivationCpu(args);
}

void MixGated(const CpuPass& p, const LayerWeights& layer, int index) {
  const ModelConfig& c = p.config;
  p.InputProduct(layer, p.a.h);
  p.Wait();
  const BlockKind& kind = p.kind();
  if (kind.decay == DecayForm::kLowRank) {
    p.Product(layer.decay, p.a.in.data + p.columns.low, p.a.in.ld, p.a.decay.data, p.a.decay.ld,
              p.rows);
    p.Wait();
  }
  p.ForEachHead([&](const CpuSegment& segment, int row, int head) {
    kernels::RecurrenceArgs args = Recurrence(p, segment, index, row, head);
    const size_t ld = size_t(p.a.in.ld);
    float* const in = p.a.in.row(row);
    float* const q = in + p.columns.q + head * c.key_dim;
    float* const k = in + p.columns.k + head * c.key_dim;
    if (kind.rotary) {
      Rotate(p, q, p.a.in.ld, row, args.tokens);
      Rotate(p, k, p.a.in.ld, row, args.tokens);
    }
    SetDecay(p, layer, row, head, &args);
    Scale(q, p.a.in.ld, c.key_dim, args.tokens, 1 / std::sqrt(float(c.key_dim)));
    args.q = {q, ld};
    args.k = {k, ld};
    args.v = {in + p.columns.v + head * c.value_dim, ld};
    p.Update(segment, index, head, args);
    if (kind.norm_all_heads) return;
    NormHead(p, layer.out_norm, args.y, p.a.o.ld, args.tokens);
    if (!c.block().output_gate) return;
    GateHead(p, false, in + p.columns.gate + head * c.value_dim, p.a.in.ld, c.value_dim, args.y,
             args.tokens);
  });
  p.Wait();
  if (!kind.norm_all_heads) return;
  NormAllHeads(p, layer);
  p.Wait();
}

void MixDelta(const CpuPass& p, const LayerWeights& layer, int index) {
  const ModelConfig& c = p.config;
  const bool low_rank = p.kind().low_rank_gate;
  p.InputProduct(layer, p.a.h);
  p.Wait();
  Convolve(p, layer, index, p.columns.q);
  if (low_rank) {
    p.Product(layer.decay, p.a.in.data + p.columns.low, p.a.in.ld, p.a.decay.data, p.a.decay.ld,
              p.rows);
    p.Product(layer.gate, p.a.in.data + p.columns.low_gate, p.a.in.ld, p.a.gate.data, p.a.gate.ld,
              p.rows);
  }
  p.Wait();
  const auto norm_keys = [&](const CpuSegment& segment, int row, int key_head) {
    float* const q = p.a.conv.row(row) + key_head * c.key_dim;
    const int tokens = int(segment.tokens.size());
    NormL2(p.weights.scaled_length, q, p.a.conv.ld, c.key_dim, tokens);
    NormL2(p.weights.unit_length, q + c.keys(), p.a.conv.ld, c.key_dim, tokens);
  };
  // Heads of q and k that several heads of v share are first normed, once each.
  const int shared_by = c.num_heads / c.key_heads();
  if (shared_by > 1) {
    p.ForEachOf(c.key_heads(), norm_keys);
    p.Wait();
  }
  p.ForEachHead([&](const CpuSegment& segment, int row, int head) {
    kernels::RecurrenceArgs args = Recurrence(p, segment, index, row, head);
    const size_t ld = size_t(p.a.conv.ld);
    if (shared_by == 1) norm_keys(segment, row, head);
    const int key_head = c.block().tiled_heads ? head % c.key_heads() : head / shared_by;
    const float* const q = p.a.conv.row(row) + key_head * c.key_dim;
    const float* const k = q + c.keys();
    float* const beta = p.a.in.row(row) + p.columns.beta + head;
    Activate(kernels::Activation::kSigmoid, beta, p.a.in.ld, 1, args.tokens);
    if (c.block().negative_eigenvalues) Scale(beta, p.a.in.ld, 1, args.tokens, 2);
    if (p.kind().decay != DecayForm::kNone) PrepareDeltaDecay(p, layer, row, head, &args);
    args.rule = kernels::UpdateRule::kDelta;
    args.q = {q, ld};
    args.k = {k, ld};
    args.v = {p.a.conv.row(row) + 2 * c.keys() + head * c.value_dim, ld};
    args.beta = {beta, size_t(p.a.in.ld)};
    p.Update(segment, index, head, args);
    NormHead(p, layer.out_norm, args.y, p.a.o.ld, args.tokens);
    if (!c.block().output_gate) return;
    const float* const gate = low_rank ? p.a.gate.row(row) : p.a.in.row(row) + p.columns.gate;
    GateHead(p, low_rank, gate + head * c.value_dim, low_rank ? p.a.gate.ld : p.a.in.ld,
             c.value_dim, args.y, args.tokens);
  });
  p.Wait();
}

namespace {

// dt = clamp(softplus(dt + bias)), w = exp(-exp(A_log) dt), v = dt x; then o += D x.
void MixMamba2Head(const CpuPass& p, const LayerWeights& layer, int index,
                   const CpuSegment& segment, int row, int head) {
  const ModelConfig& c = p.config;
  kernels::RecurrenceArgs args = Recurrence(p, segment, index, row, head);
  const size_t ld = size_t(p.a.conv.ld), ld_in = size_t(p.a.in.ld);
  float* const dt = p.a.in.row(row) + p.columns.dt + head;
  Activate(kernels::Activation::kSoftplus, dt, p.a.in.ld, 1, args.tokens,
           &layer.decay_bias[size_t(head)]);
  const float* const x = p.a.conv.row(row) + head * c.value_dim;
  float* const v = p.a.value.row(row) + head * c.value_dim;
  for (int t = 0; t < args.tokens; ++t) {
    float& step = dt[size_t(t) * ld_in];
    step = step < c.block().dt_min   ? c.block().dt_min
           : step > c.block().dt_max ? c.block().dt_max
                                     : step;  // NaN stays
    for (int i = 0; i < c.value_dim; ++i) {
      v[size_t(t) * size_t(p.a.value.ld) + size_t(i)] = step * x[size_t(t) * ld + size_t(i)];
    }
  }
  kernels::DecayArgs decay;
  decay.kind = kernels::DecayKind::kIdentity;
  decay.rows = args.tokens;
  decay.n = 1;
  decay.x = dt;
  decay.x_stride = ld_in;
  decay.scale = &layer.decay_scale[size_t(head)];
  decay.y = p.a.decay.row(row) + head;
  decay.y_stride = size_t(p.a.decay.ld);
  kernels::DecayCpu(decay);
  const int group = head / (c.num_heads / c.block().num_groups);
  const float* const b = p.a.conv.row(row) + c.values() + group * c.key_dim;
  args.w_dim = 1;
  args.w = {decay.y, decay.y_stride};
  args.q = {b + c.block().num_groups * c.key_dim, ld};
  args.k = {b, ld};
  args.v = {v, size_t(p.a.value.ld)};
  p.Update(segment, index, head, args);
  for (int t = 0; t < args.tokens; ++t) {
    for (int i = 0; i < c.value_dim; ++i) {
      args.y[size_t(t) * args.y_stride + size_t(i)] +=
          layer.skip[size_t(head)] * x[size_t(t) * ld + size_t(i)];
    }
  }
}

// The end of Mamba-2 for this thread's rows: gate and norm of each group in the model's order, and
// the scale of a hybrid.
void FinishMamba2(const CpuPass& p, const LayerWeights& layer) {
  const ModelConfig& c = p.config;
  const BlockConfig& block = c.block();
  const IndexRange range = p.RowShare();
  float* const o = p.a.o.row(range.begin);
  const float* const gate = p.a.in.row(range.begin) + p.columns.gate;
  kernels::RmsNormArgs norm;
  norm.x = norm.y = o;
  norm.x_stride = norm.y_stride = size_t(p.a.o.ld);
  norm.rows = range.end - range.begin;
  norm.groups = block.num_groups;
  norm.size = c.values() / block.num_groups;
  norm.weight = layer.out_norm.data();
  norm.weight_stride = size_t(norm.size);
  norm.eps = c.norm_eps;
  if (block.mamba_norm == MambaNorm::kNormFirst) kernels::RmsNormCpu(norm);
  GateHead(p, /*sigmoid=*/false, gate, p.a.in.ld, c.values(), o, norm.rows);
  if (block.mamba_norm == MambaNorm::kGateFirst) kernels::RmsNormCpu(norm);
  if (block.mixer_multiplier != 1) {
    Scale(o, p.a.o.ld, c.values(), norm.rows, block.mixer_multiplier);
  }
}

// Falcon-H1: z, x, B, C and dt have a scale each.
void ScaleMamba2Inputs(const CpuPass& p) {
  const std::vector<float>& by = p.config.block().mamba_multipliers;
  if (by.empty()) return;
  const IndexRange range = p.RowShare();
  const int values = p.config.values(), groups = p.columns.q - p.columns.k;
  const std::pair<int, int> parts[] = {{p.columns.gate, values},
                                       {p.columns.v, values},
                                       {p.columns.k, groups},
                                       {p.columns.q, groups},
                                       {p.columns.dt, p.config.num_heads}};
  for (size_t i = 0; i < std::size(parts); ++i) {
    Scale(p.a.in.row(range.begin) + parts[i].first, p.a.in.ld, parts[i].second,
          range.end - range.begin, by[i]);
  }
  p.Wait();
}

}  // namespace

void MixMamba2(const CpuPass& p, const LayerWeights& layer, int index) {
  p.InputProduct(layer, p.a.h);
  p.Wait();
  ScaleMamba2Inputs(p);
  Convolve(p, layer, index, p.columns.v);
  p.Wait();
  p.ForEachHead([&](const CpuSegment& segment, int row, int head) {
    MixMamba2Head(p, layer, index, segment, row, head);
  });
  p.Wait();
  FinishMamba2(p, layer);
  p.Wait();
}

// o = C conv(B x), from B, C and x side by side.
void MixShortConv(const CpuPass& p, const LayerWeights& layer, int index) {
  p.InputProduct(layer, p.a.h);
  p.Wait();
  const int hidden = p.config.hidden_size;
  const auto multiply = [&](const CpuPass::Array& from, int first, const CpuPass::Array& by,
                            int by_first, const CpuPass::Array& to, int to_first) {
    const IndexRange range = p.RowShare();
    for (int row = range.begin; row < range.end; ++row) {
      const float *x = from.row(row) + first, *factor = by.row(row) + by_first;
      float* const y = to.row(row) + to_first;
      for (int i = 0; i < hidden; ++i) y[i] = x[i] * factor[i];
    }
  };
  multiply(p.a.in, p.columns.v, p.a.in, p.columns.k, p.a.in, p.columns.v);
  p.Wait();
  Convolve(p, layer, index, p.columns.v, /*silu=*/false);
  p.Wait();
  multiply(p.a.conv, 0, p.a.in, p.columns.q, p.a.o, 0);
  p.Wait();
}

}  // namespace rivulet
