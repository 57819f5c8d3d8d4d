// SPDX-License-Identifier: Apache-2.0
// BlockForward: the CpuNetwork of the family's models (model/block_config.h).
#pragma once

#include <memory>
#include <span>

#include "model/config.h"
#include "model/cpu/block_weights.h"
#include "model/cpu/cpu_network.h"

namespace rivulet {

// Activations of one piece: arrays [rows, ld], ld a whole number of panels so that products may
// store whole panels. An array that the kind does not use has no memory.
class BlockActivations final : public CpuActivations {
 public:
  struct Array {
    float* data = nullptr;
    int ld = 0;
    float* row(int r) const { return data + size_t(r) * size_t(ld); }
  };

  BlockActivations(const ModelConfig& config, const BlockWeights& weights, int max_rows);

  const float* output(int i) const override { return outputs.row(i); }

  Array x, h;     // the residual stream; the normed row
  Array in;       // BlockColumns; RWKV-7: r | k | v, each padded
  Array conv;     // what the convolution made of them
  Array decay;    // w: [keys] or [heads]
  Array rate;     // RWKV-7: alpha; [keys]
  Array gate;     // of the output, where a product of its own makes it
  Array low;      // RWKV-7: first halves of the low-rank products
  Array value;    // Mamba-2: dt x; RWKV-7: what v mixes by
  Array first;    // RWKV-7: v of layer 0
  Array removal;  // RWKV-7: kk, and -kk alpha
  Array o;        // [values]
  Array mix;      // RWKV-7: six rows for each
  Array ffn;      // [gate | up]
  Array rope;     // cosines, then sines, of a row's position
  Array kept, outputs;

 private:
  AlignedBuffer memory_;
};

class BlockForward final : public CpuNetwork {
 public:
  // `config` is borrowed.
  BlockForward(const ModelConfig& config, std::unique_ptr<const BlockWeights> weights)
      : config_(config), state_(config.state()), weights_(std::move(weights)) {}

  const CpuWeightFacts& weights() const override { return weights_->facts; }
  std::unique_ptr<CpuActivations> NewActivations(int max_rows, int threads) const override;
  void Pass(std::span<const CpuSegment> piece, CpuActivations& activations, int thread, int threads,
            SpinBarrier& barrier) const override;

 private:
  const ModelConfig& config_;
  const BlockState state_;
  const std::unique_ptr<const BlockWeights> weights_;
};

}  // namespace rivulet
