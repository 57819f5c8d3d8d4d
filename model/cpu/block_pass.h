// SPDX-License-Identifier: Apache-2.0
// BlockPass: one thread's view of a pass of BlockForward, and how its parts are dealt out.
#pragma once

#include <span>

#include "kernels/activation.h"
#include "kernels/gemm.h"
#include "model/config.h"
#include "model/cpu/block_forward.h"
#include "model/cpu/block_weights.h"
#include "model/cpu/cpu_network.h"
#include "model/cpu/cpu_shares.h"

namespace rivulet {

struct BlockPass {
  using Array = BlockActivations::Array;

  const ModelConfig& config;
  const BlockState& state;
  const BlockWeights& weights;
  const BlockColumns& columns;  // of `weights`
  std::span<const CpuSegment> piece;
  BlockActivations& a;
  int thread, threads;
  SpinBarrier& barrier;
  int rows;  // token rows

  const BlockKind& kind() const { return *config.block().kind; }
  void Wait() const { barrier.Wait(); }
  IndexRange RowShare() const { return ShareOf(rows, thread, threads); }

  // This thread's panels of y = epilogue(x W + b), for `count` rows. kResidual adds to y.
  void Product(const CpuMatrix& m, const float* x, int ldx, float* y, int ldy, int count,
               kernels::Epilogue epilogue = kernels::Epilogue::kNone) const {
    ShareOfProduct(m, x, ldx, y, ldy, count, epilogue, thread, threads);
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

  // Calls f(segment, first row, head) for this thread's share of all (segment, head): a state is
  // touched by one thread and stays in its cache.
  template <class F>
  void ForEachHead(const F& f) const {
    ForEachOf(config.num_heads, f);
  }
  // The same of `heads` heads.
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
    return segment.state + size_t(layer) * state.floats_per_layer + part;
  }
  float* S(const CpuSegment& segment, int layer, int head) const {
    return State(segment, layer, state.s) +
           size_t(head) * size_t(config.key_dim) * size_t(config.value_dim);
  }
};

// x += mix(h), without the output product: a.h to a.o. All threads call it; it ends with a barrier.
void MixGated(const BlockPass& p, const BlockLayer& layer, int index);  // RetNet, GLA, HGRN2
void MixDelta(const BlockPass& p, const BlockLayer& layer, int index);  // the delta rules
void MixMamba2(const BlockPass& p, const BlockLayer& layer, int index);
void MixRwkv7(const BlockPass& p, const BlockLayer& layer, int index);

// The first half of RWKV-7's feed-forward: a.h to a.ffn. As above.
void FeedRwkv7(const BlockPass& p, const BlockLayer& layer, int index);

// y = f(x + bias) of `n` columns of `count` rows, in place. `bias` null: 0.
void Activate(kernels::Activation kind, float* x, int ld, int n, int count,
              const float* bias = nullptr);

// y = x / sqrt(mean(x^2) + eps) * weight, of the head's columns of `count` rows, in place.
void NormHead(const BlockPass& p, const std::vector<float>& weight, float* x, int ld, int count);

// o *= f(gate) of the head's columns.
void GateHead(const BlockPass& p, bool sigmoid, const float* gate, int ld_gate, float* o,
              int count);

}  // namespace rivulet
