// SPDX-License-Identifier: Apache-2.0
// CpuPass: one thread's view of a pass of CpuNetwork, and the split of the work among threads.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/activation.h"
#include "kernels/gemm.h"
#include "kernels/linear_attention.h"
#include "kernels/recurrence.h"
#include "kernels/softmax_attention.h"
#include "model/config.h"
#include "model/cpu/cpu_network.h"
#include "model/cpu/cpu_replay.h"
#include "model/loading/packed_weights.h"

namespace rivulet {

struct IndexRange {
  int begin, end;
};

// Share of `thread` in 0 .. n - 1, contiguous.
inline IndexRange ShareOf(int n, int thread, int threads) {
  return {int(int64_t{n} * thread / threads), int(int64_t{n} * (thread + 1) / threads)};
}

inline void Compute(const kernels::RecurrenceArgs& args) { kernels::RecurrenceCpu(args); }
inline void Compute(const kernels::LinearAttentionArgs& args) { kernels::LinearAttentionCpu(args); }
inline void Compute(const kernels::SoftmaxAttentionArgs& args) {
  kernels::SoftmaxAttentionCpu(args);
}

struct CpuPass {
  using Array = CpuActivations::Array;

  const ModelConfig& config;
  const EncoderConfig* encoder;  // of kinds "linear" and "softmax"; null: a model of the family
  const BlockState& state;       // of the family
  const StateParts& parts;
  const PackedWeights& weights;
  const InputColumns& columns;  // of `weights`
  std::span<const CpuSegment> piece;
  CpuActivations& a;
  int thread, threads;
  SpinBarrier& barrier;
  // The current rows: all token rows, and after KeepOutputRows() the rows with outputs.
  int rows;
  Array x, o;
  mutable unsigned quantized = 0;     // products so far whose input was quantized
  ExpertLoad* expert_load = nullptr;  // null: experts are not counted

  const BlockKind& kind() const { return *config.block().kind; }  // of the family
  void Wait() const { barrier.Wait(); }
  IndexRange RowShare() const { return ShareOf(rows, thread, threads); }

  // The arguments of this thread's part of a product, except quantized rows.
  kernels::GemmArgs ProductArgs(const MatrixWeights& m, const float* input, int ld_input, float* y,
                                int ldy, int count, kernels::Epilogue epilogue) const;
  // Computes this thread's panels of y = epilogue(input W + b), for `count` rows; ldy is a whole
  // number of panels. kResidual adds to y. All threads call it, with the same arguments.
  void Product(const MatrixWeights& m, const float* input, int ld_input, float* y, int ldy,
               int count, kernels::Epilogue epilogue = kernels::Epilogue::kNone) const;

  // x += the second product of RWKV-7's feed-forward, whose inputs are mostly 0. With few rows,
  // where reading weights is the limit, only the weights of inputs that are not 0 are read.
  void AddFfn(const LayerWeights& layer) const;

  // a.in = the product of `from` with the layer's input matrices.
  void InputProduct(const LayerWeights& layer, const Array& from) const {
    Product(layer.in, from.data, from.ld, a.in.data, a.in.ld, rows);
    if (layer.in_small.packed.panels == nullptr) return;
    Product(layer.in_small, from.data, from.ld, a.in.data + columns.small, a.in.ld, rows);
  }

  // Drops the rows without outputs: after the last update of states only rows with outputs matter,
  // for a prompt one row. Their x and o stay. Other threads' x and o must be complete; ends with a
  // barrier if it moved rows.
  void KeepOutputRows();

  // Calls f(row, token, position) for this thread's share of the token rows.
  template <class F>
  void ForEachToken(const F& f) const {
    const IndexRange range = ShareOf(TokenRows(piece), thread, threads);
    int row = 0;
    for (const CpuSegment& segment : piece) {
      for (size_t t = 0; t < segment.tokens.size(); ++t, ++row) {
        if (row < range.begin || row >= range.end) continue;
        f(row, segment.tokens[t], segment.position + int64_t(t));
      }
    }
  }

  // Calls f(segment, first row) for this thread's share of the segments.
  template <class F>
  void ForEachSegment(const F& f) const {
    const IndexRange range = ShareOf(int(piece.size()), thread, threads);
    int row = 0;
    for (int i = 0; i < range.end; ++i) {
      if (i >= range.begin) f(piece[size_t(i)], row);
      row += int(piece[size_t(i)].tokens.size());
    }
  }

  // Calls f(segment, first row, head) for this thread's share of all (segment, head): only one
  // thread touches a state, which stays in its cache.
  template <class F>
  void ForEachHead(const F& f) const {
    ForEachOf(config.num_heads, f);
  }
  // ForEachHead with `heads` heads.
  template <class F>
  void ForEachOf(int heads, const F& f) const {
    const IndexRange range = ShareOf(int(piece.size()) * heads, thread, threads);
    int row = 0;
    for (int i = 0; i * heads < range.end; ++i) {
      for (int h = 0; h < heads; ++h) {
        const int index = i * heads + h;
        if (index >= range.begin && index < range.end) f(piece[size_t(i)], row, h);
      }
      row += int(piece[size_t(i)].tokens.size());
    }
  }

  // Parts of a layer's state.
  float* State(const CpuSegment& segment, int layer, size_t part) const {
    return segment.state + parts.recurrent_at[size_t(layer)] + part;
  }
  // Computes `args` of a layer's head: of a recurrence, or of attention. The segment's replay keeps
  // what that changes.
  template <class Args>
  void Update(const CpuSegment& segment, int layer, int head, const Args& args) const {
    if (segment.replay != nullptr) segment.replay->Keep(layer, head, args);
    Compute(args);
  }
  float* S(const CpuSegment& segment, int layer, int head) const {
    return State(segment, layer, state.s) +
           size_t(head) * size_t(config.key_dim) * size_t(config.value_dim);
  }
};

// Kinds "linear" and "softmax": the embedding with its position, into a.x.
void EmbedWithPosition(const CpuPass& p);
// Kind "linear": attention, a.in to a.o.
void MixLinear(const CpuPass& p, const LayerWeights& layer, int index);

// Arguments of softmax attention for one head of keys and values and the heads of queries that
// share it: the layer's cache for `segment`, and all else that does not depend on q, k and v.
kernels::SoftmaxAttentionArgs KeptHead(const CpuPass& p, const CpuSegment& segment, int layer,
                                       int head, int queries);
// Kind "softmax": as MixLinear.
void MixSoftmax(const CpuPass& p, int index);
// A hybrid's layers with attention: a.h to a.o, like the mixers below.
void MixSoftmaxHeads(const CpuPass& p, const LayerWeights& layer, int index);

// x += mix(h), without the output product: a.h to a.o. All threads call it; it ends with a barrier.
void MixGated(const CpuPass& p, const LayerWeights& layer, int index);  // RetNet, GLA, HGRN2
void MixDelta(const CpuPass& p, const LayerWeights& layer, int index);  // the delta rules
void MixMamba2(const CpuPass& p, const LayerWeights& layer, int index);
void MixRwkv7(const CpuPass& p, const LayerWeights& layer, int index);
void MixShortConv(const CpuPass& p, const LayerWeights& layer, int index);

// The first half of RWKV-7's feed-forward: a.h to a.ffn. As above.
void FeedRwkv7(const CpuPass& p, const LayerWeights& layer, int index);

// x += the experts' outputs for a.h. As above.
void FeedExperts(const CpuPass& p, const LayerWeights& layer, int index);

// The activation of a feed-forward of `columns` columns, in place: silu(gate) up or relu(up)^2, of
// `rows` rows at `ffn`; up is PaddedColumns(columns) behind the gate.
void ActivateFfn(const CpuPass& p, float* ffn, int ld, int columns, int rows);

// y = f(x + bias) of `n` columns of `count` rows, in place. `bias` null: 0.
void Activate(kernels::Activation kind, float* x, int ld, int n, int count,
              const float* bias = nullptr);

// x *= by, of `n` columns of `count` rows.
void Scale(float* x, int ld, int n, int count, float by);

// Turns the pairs of the first columns (RopeConfig) by the angles of rows from `row` on [Su 2021].
// Without rotary positions x stays.
void Rotate(const CpuPass& p, float* x, int ld, int row, int count);

// y = x / sqrt(mean(x^2) + eps) * weight, of `size` columns of `rows` rows, in place.
void NormRows(const std::vector<float>& weight, float eps, float* x, int ld, int size, int rows);
// The same with the model's eps, of weight.size() columns.
void NormHead(const CpuPass& p, const std::vector<float>& weight, float* x, int ld, int count);

// o *= f(gate) of `n` columns of `count` rows; o within a.o.
void GateHead(const CpuPass& p, bool sigmoid, const float* gate, int ld_gate, int n, float* o,
              int count);

}  // namespace rivulet
