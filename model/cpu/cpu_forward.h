// SPDX-License-Identifier: Apache-2.0
// CpuForward: the CpuNetwork of the transformers with linear attention (model/FORMAT.md).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/config.h"
#include "model/cpu/aligned_buffer.h"
#include "model/cpu/cpu_network.h"
#include "model/cpu/cpu_weights.h"

namespace rivulet {

// All [rows, ld], rows padded to whole panels so that kernels may store them.
class CpuScratch final : public CpuActivations {
 public:
  CpuScratch(const ModelConfig& config, int max_rows, int threads);

  const float* output(int i) const override { return outputs + size_t(i) * size_t(ld_outputs); }

  int max_rows;
  int ld_x, ld_qkv, ld_attention, ld_ffn, ld_outputs;
  float *x, *qkv, *attention, *ffn, *kept_x, *kept_attention, *outputs;
  std::vector<AlignedBuffer> features;  // per thread: linear attention's scratch

 private:
  friend class CpuForward;
  AlignedBuffer memory_;
};

class CpuForward final : public CpuNetwork {
 public:
  // `config` is borrowed.
  CpuForward(const ModelConfig& config, std::unique_ptr<const CpuWeights> weights);

  const CpuWeightFacts& weights() const override { return facts_; }
  std::unique_ptr<CpuActivations> NewActivations(int max_rows, int threads) const override;
  void Pass(std::span<const CpuSegment> piece, CpuActivations& activations, int thread, int threads,
            SpinBarrier& barrier) const override;

 private:
  struct Part;  // one thread's view of a pass
  void Embed(const Part& p) const;
  void Attention(const Part& p, const CpuLayer& layer, int layer_index) const;
  void Layer(Part& p, int layer_index) const;
  void KeepOutputRows(Part& p) const;
  void Head(Part& p) const;

  const ModelConfig& config_;
  const std::unique_ptr<const CpuWeights> owned_;
  const CpuWeights& weights_;
  const CpuWeightFacts facts_;
};

}  // namespace rivulet
