// SPDX-License-Identifier: Apache-2.0
// RWKV-7's mixer [Peng 2025]. m_c = h + (h_prev - h) x_c for c in r, w, k, v, a, g; then
//
//   r, k, v = W_r m_r, W_k m_k, W_v m_v
//   w = exp(-e^(-1/2) sigmoid(lora_w(m_w))), alpha = sigmoid(lora_a(m_a)), g = lora_g(m_g)
//   v += (v of layer 0 - v) sigmoid(lora_v(m_v))                      from layer 1 on
//   kk = k k_k, of length 1 a head;  k = k (1 + (alpha - 1) k_a)
//   S = diag(w) S - (kk alpha) (S^T kk)^T + k v^T;  o = S^T r
//   o = (GroupNorm(o) + (sum of r k r_k over the head) v) g
#include <cstring>
#include <vector>

#include "kernels/activation.h"
#include "kernels/decay.h"
#include "kernels/group_norm.h"
#include "kernels/recurrence.h"
#include "kernels/token_shift.h"
#include "model/cpu/cpu_pass.h"

namespace rivulet {
namespace {

using kernels::PaddedColumns;

enum MixRow { kMixR, kMixW, kMixK, kMixV, kMixA, kMixG };

// The columns of r, k, v in `in`, and of the first halves of the low-rank products in `low`.
struct Columns {
  explicit Columns(const ModelConfig& c, const Rwkv7Layer& own)
      : k(PaddedColumns(c.hidden_size)),
        v(2 * k),
        a(PaddedColumns(own.w.first.packed.n)),
        g(a + PaddedColumns(own.a.first.packed.n)),
        v_mix(g + PaddedColumns(own.g.first.packed.n)) {}
  int k, v, a, g, v_mix;
};

// Mixes the rows of h with the rows before, into a.mix.
void Shift(const CpuPass& p, int index, InputPart part, const std::vector<float>& mix, int mixes) {
  const size_t state = part == InputPart::kFfnShift ? p.state.ffn_shift : p.state.mixer_shift;
  p.ForEachSegment([&](const CpuSegment& segment, int row) {
    kernels::TokenShiftArgs args;
    args.x = p.a.h.row(row);
    args.mix = mix.data();
    args.y = p.a.mix.row(row);
    args.state = p.State(segment, index, state);
    args.x_stride = size_t(p.a.h.ld);
    args.y_stride = size_t(p.a.mix.ld);
    args.mix_stride = size_t(p.a.h.ld);
    args.tokens = int(segment.tokens.size());
    args.mixes = mixes;
    args.n = p.config.hidden_size;
    if (segment.replay != nullptr) {
      segment.replay->Keep(index, part,
                           {args.state, 1, args.n, args.tokens, args.x, args.x_stride});
    }
    kernels::TokenShiftCpu(args);
  });
  p.Wait();
}

// All products of the six mixes. Ends with a barrier.
void Project(const CpuPass& p, const LayerWeights& layer, const Columns& at, bool with_v_mix) {
  const Rwkv7Layer& own = *layer.rwkv7;
  const auto product = [&](const MatrixWeights& m, MixRow mix, float* y, int ldy) {
    p.Product(m, p.a.mix.data + mix * p.a.h.ld, p.a.mix.ld, y, ldy, p.rows);
  };
  product(own.r, kMixR, p.a.in.data, p.a.in.ld);
  product(own.k, kMixK, p.a.in.data + at.k, p.a.in.ld);
  product(own.v, kMixV, p.a.in.data + at.v, p.a.in.ld);
  float* const low = p.a.low.data;
  product(own.w.first, kMixW, low, p.a.low.ld);
  product(own.a.first, kMixA, low + at.a, p.a.low.ld);
  product(own.g.first, kMixG, low + at.g, p.a.low.ld);
  if (with_v_mix) product(own.v_mix.first, kMixV, low + at.v_mix, p.a.low.ld);
  p.Wait();
  const IndexRange range = p.RowShare();
  const int count = range.end - range.begin;
  Activate(kernels::Activation::kTanh, p.a.low.row(range.begin), p.a.low.ld, own.w.first.packed.n,
           count);
  Activate(kernels::Activation::kSigmoid, p.a.low.row(range.begin) + at.g, p.a.low.ld,
           own.g.first.packed.n, count);
  p.Wait();
  const auto second = [&](const LowRank& lora, int column, const CpuPass::Array& y) {
    p.Product(lora.second, low + column, p.a.low.ld, y.data, y.ld, p.rows);
  };
  second(own.w, 0, p.a.decay);
  second(own.a, at.a, p.a.rate);
  second(own.g, at.g, p.a.gate);
  if (with_v_mix) second(own.v_mix, at.v_mix, p.a.value);
  p.Wait();
}

// v of layer 0 is stored for the later layers, which mix their v with it.
void MixValues(const CpuPass& p, const Columns& at, int index, int row, int head, int count) {
  const int n = p.config.value_dim, first = head * n;
  for (int t = 0; t < count; ++t) {
    float* const v = p.a.in.row(row + t) + at.v + first;
    float* const kept = p.a.first.row(row + t) + first;
    if (index == 0) {
      std::memcpy(kept, v, size_t(n) * sizeof(float));
      continue;
    }
    const float* const by = p.a.value.row(row + t) + first;  // sigmoid is done
    for (int i = 0; i < n; ++i) v[i] += (kept[i] - v[i]) * by[i];
  }
}

// Writes kk to the first columns of `removal`, and -kk alpha behind kk of all heads; then updates
// k.
void MixKeys(const CpuPass& p, const Rwkv7Layer& own, const Columns& at, int row, int head,
             int count) {
  const int n = p.config.key_dim, first = head * n, all = p.config.keys();
  for (int t = 0; t < count; ++t) {
    const float* const k = p.a.in.row(row + t) + at.k + first;
    float* const kk = p.a.removal.row(row + t) + first;
    for (int i = 0; i < n; ++i) kk[i] = k[i] * own.k_k[size_t(first + i)];
  }
  // The division by max(length, 1e-12) becomes one by sqrt(sum of squares + 1e-24), like a norm.
  NormRows(p.weights.unit_length, 1e-24f / float(n), p.a.removal.row(row) + first, p.a.removal.ld,
           n, count);
  for (int t = 0; t < count; ++t) {
    float* const k = p.a.in.row(row + t) + at.k + first;
    const float* const kk = p.a.removal.row(row + t) + first;
    float* const minus = p.a.removal.row(row + t) + all + first;
    const float* const alpha = p.a.rate.row(row + t) + first;
    for (int i = 0; i < n; ++i) {
      minus[i] = -(kk[i] * alpha[i]);
      k[i] = k[i] * (1 + (alpha[i] - 1) * own.k_a[size_t(first + i)]);
    }
  }
}

// o = GroupNorm(o) + (sum of r k r_k) v, times g.
void FinishHead(const CpuPass& p, const Rwkv7Layer& own, const Columns& at, int row, int head,
                int count) {
  const int n = p.config.value_dim, first = head * n;
  kernels::GroupNormArgs norm;
  norm.x = norm.y = p.a.o.row(row) + first;
  norm.weight = &own.group_norm[size_t(first)];
  norm.bias = &own.group_norm_bias[size_t(first)];
  norm.x_stride = norm.y_stride = size_t(p.a.o.ld);
  norm.rows = count;
  norm.size = n;
  norm.eps = float(n) * p.config.norm_eps;
  kernels::GroupNormCpu(norm);
  for (int t = 0; t < count; ++t) {
    const float* const in = p.a.in.row(row + t) + first;
    const float* const gate = p.a.gate.row(row + t) + first;
    float* const o = p.a.o.row(row + t) + first;
    float bonus = 0;
    for (int i = 0; i < n; ++i) bonus += in[i] * in[at.k + i] * own.r_k[size_t(first + i)];
    for (int i = 0; i < n; ++i) o[i] = (o[i] + bonus * in[at.v + i]) * gate[i];
  }
}

void MixHead(const CpuPass& p, const LayerWeights& layer, const Columns& at, int index,
             const CpuSegment& segment, int row, int head) {
  const ModelConfig& c = p.config;
  const Rwkv7Layer& own = *layer.rwkv7;
  const int n = c.key_dim, first = head * n, count = int(segment.tokens.size());
  if (index > 0) {
    Activate(kernels::Activation::kSigmoid, p.a.value.row(row) + first, p.a.value.ld, n, count);
  }
  Activate(kernels::Activation::kSigmoid, p.a.rate.row(row) + first, p.a.rate.ld, n, count);
  MixValues(p, at, index, row, head, count);
  MixKeys(p, own, at, row, head, count);
  kernels::DecayArgs decay;
  decay.kind = kernels::DecayKind::kSigmoid;
  decay.rows = count;
  decay.n = n;
  decay.x = decay.y = p.a.decay.row(row) + first;
  decay.x_stride = decay.y_stride = size_t(p.a.decay.ld);
  decay.scale = &layer.decay_scale[size_t(first)];
  kernels::DecayCpu(decay);
  const float* const in = p.a.in.row(row) + first;
  const float* const removal = p.a.removal.row(row) + first;
  kernels::RecurrenceArgs args;
  args.rule = kernels::UpdateRule::kRankOne;
  args.tokens = count;
  args.key_dim = args.value_dim = args.w_dim = n;
  args.q = {in, size_t(p.a.in.ld)};
  args.k = {in + at.k, size_t(p.a.in.ld)};
  args.v = {in + at.v, size_t(p.a.in.ld)};
  args.w = {decay.y, decay.y_stride};
  args.a = {removal, size_t(p.a.removal.ld)};
  args.b = {removal + c.keys(), size_t(p.a.removal.ld)};
  args.s = p.S(segment, index, head);
  args.y = p.a.o.row(row) + first;
  args.y_stride = size_t(p.a.o.ld);
  p.Update(segment, index, head, args);
  FinishHead(p, own, at, row, head, count);
}

}  // namespace

void MixRwkv7(const CpuPass& p, const LayerWeights& layer, int index) {
  const Columns at(p.config, *layer.rwkv7);
  Shift(p, index, InputPart::kMixerShift, layer.rwkv7->mix, 6);
  Project(p, layer, at, index > 0);
  p.ForEachHead([&](const CpuSegment& segment, int row, int head) {
    MixHead(p, layer, at, index, segment, row, head);
  });
  p.Wait();
}

// h = key(h + (h_prev - h) x_k), squared if it is positive, else 0.
void FeedRwkv7(const CpuPass& p, const LayerWeights& layer, int index) {
  Shift(p, index, InputPart::kFfnShift, layer.rwkv7->ffn_mix, 1);
  p.Product(layer.up, p.a.mix.data, p.a.mix.ld, p.a.ffn.data, p.a.ffn.ld, p.rows);
  p.Wait();
  const IndexRange range = p.RowShare();
  Activate(kernels::Activation::kSquaredRelu, p.a.ffn.row(range.begin), p.a.ffn.ld,
           p.config.ffn_size, range.end - range.begin);
  p.Wait();
}

}  // namespace rivulet
