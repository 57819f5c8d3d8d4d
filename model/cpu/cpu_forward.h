// SPDX-License-Identifier: Apache-2.0
// The model's forward pass on the CPU: token rows in, raw head outputs out, states advanced.
//
// A *segment* is consecutive tokens of one slot; a *piece* is the segments that one pass takes
// together. Matrix products run over all token rows of a piece; states advance token by token in
// order. Two ways to use threads, with the same bits: Shared (all threads split columns and heads
// of one piece, barriers between phases) for few rows and for prompts; Solo (each thread takes
// whole pieces) for many rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"
#include "model/cpu/aligned_buffer.h"
#include "model/cpu/cpu_weights.h"
#include "model/cpu/thread_team.h"

namespace rivulet {

struct CpuSegment {
  float* state = nullptr;           // slot's block, kernels/state_layout.h
  int64_t position = 0;             // of tokens[0]
  std::span<const int32_t> tokens;  // at least 1
  bool all_outputs = false;         // head outputs after every token, else only where `last_output`
  bool last_output = false;         // head outputs after the last token
};

// Activations of one piece; one for Shared use, one per thread for Solo use. All [rows, ld], rows
// padded to whole panels so that kernels may store them.
class CpuScratch {
 public:
  // For pieces of at most `max_rows` token rows.
  CpuScratch(const ModelConfig& config, int max_rows);

  // Head outputs of output row i of the last pass: [output_size] float32, valid until the next
  // pass. Output rows are numbered over the piece in order of segments and tokens.
  const float* output(int i) const { return outputs + size_t(i) * size_t(ld_outputs); }

  int max_rows;
  int ld_x, ld_qkv, ld_attention, ld_ffn, ld_outputs;
  float *x, *qkv, *attention, *ffn, *kept_x, *kept_attention, *outputs;
  std::vector<AlignedBuffer> features;  // per thread: linear attention's scratch

 private:
  friend class CpuForward;
  AlignedBuffer memory_;
};

// Thread: const; passes with different scratch and states may run at once.
class CpuForward {
 public:
  CpuForward(const ModelConfig& config, const CpuWeights& weights)
      : config_(config), weights_(weights) {}

  // The part of thread `thread` of `threads` in one pass over `piece`; all threads call it with the
  // same arguments and a barrier of that size (Solo: 0 of 1). Returns once the outputs are
  // complete. REQUIRES: token rows fit `scratch`.
  void Pass(std::span<const CpuSegment> piece, CpuScratch& scratch, int thread, int threads,
            SpinBarrier& barrier) const;

  static int TokenRows(std::span<const CpuSegment> piece);
  static int OutputRows(std::span<const CpuSegment> piece);

 private:
  struct Part;  // one thread's view of a pass
  void Embed(const Part& p) const;
  void Attention(const Part& p, const CpuLayer& layer, int layer_index) const;
  void Layer(Part& p, int layer_index) const;
  void KeepOutputRows(Part& p) const;
  void Head(Part& p) const;

  const ModelConfig& config_;
  const CpuWeights& weights_;
};

}  // namespace rivulet
