// SPDX-License-Identifier: Apache-2.0
// CpuNetwork: a model's forward pass on the CPU, as the backend drives it: token rows in, raw head
// outputs out, states advanced.
//
// A *segment* is consecutive tokens of one slot; a *piece* is the segments that one pass takes
// together. Matrix products run over all token rows of a piece; states advance token by token in
// order. Two ways to use threads, with the same bits: Shared (all threads split columns and heads
// of one piece, barriers between phases) for few rows and for prompts; Solo (each thread takes
// whole pieces) for many rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kernels/gemm.h"
#include "model/cpu/thread_team.h"

namespace rivulet {

struct CpuSegment {
  float* state = nullptr;           // slot's block
  int64_t position = 0;             // of tokens[0]
  std::span<const int32_t> tokens;  // at least 1
  bool all_outputs = false;         // head outputs after every token, else only where `last_output`
  bool last_output = false;         // head outputs after the last token
};

// Token rows of a piece, and those of them that get head outputs.
int TokenRows(std::span<const CpuSegment> piece);
int OutputRows(std::span<const CpuSegment> piece);

// Activations of one piece; one for Shared use, one per thread for Solo use.
class CpuActivations {
 public:
  virtual ~CpuActivations() = default;
  // Head outputs of output row i of the last pass: [output_size] float32, valid until the next
  // pass. Output rows are numbered over the piece in order of segments and tokens.
  virtual const float* output(int i) const = 0;
};

// What a network's weights are in memory.
struct CpuWeightFacts {
  size_t bytes = 0;
  int64_t multiply_adds = 0;  // of all matrix products, for one token row
  // Of the matrices; kF32 where they differ.
  kernels::WeightType type = kernels::WeightType::kF32;
  bool lossless = true;  // the matrices equal the file's
};

// Thread: const; passes with different activations and states may run at once.
class CpuNetwork {
 public:
  virtual ~CpuNetwork() = default;

  virtual const CpuWeightFacts& weights() const = 0;
  // For pieces of at most `max_rows` token rows, worked on by at most `threads` threads.
  virtual std::unique_ptr<CpuActivations> NewActivations(int max_rows, int threads) const = 0;

  // The part of thread `thread` of `threads` in one pass over `piece`; all threads call it with the
  // same arguments and a barrier of that size (Solo: 0 of 1). Returns once the outputs are
  // complete. REQUIRES: token rows fit `activations`, which are of this network.
  virtual void Pass(std::span<const CpuSegment> piece, CpuActivations& activations, int thread,
                    int threads, SpinBarrier& barrier) const = 0;
};

}  // namespace rivulet
