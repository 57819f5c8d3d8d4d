// SPDX-License-Identifier: Apache-2.0
// Steps of few rows in one launch: embedding, all layers, head, sampling, again and again, without
// the host and without a launch in between. For models with weights in F16 that fit into the shared
// memory of the multiprocessors together, where they stay for the whole launch, and so do the
// states of the rows, if they fit as well.
//
// Bits: those of the other kernels. A product has its one accumulator an output and k ascending, so
// blocks split columns, never k; attention adds in the order of its kernels; sampling is their
// code. So whoever runs a step is free to choose for each.
//
// Blocks. All are resident at once (a cooperative launch), one a multiprocessor. They form *stages*
// of equal size; layer l belongs to stage l mod stages. Within a stage the heads of a layer and the
// columns of its products are dealt out: a head's q, k, v and its attention to one block, so that
// its state has one place; the rest evenly. The last layer's stage also has the head: up to
// kLocalHead outputs are computed by the block that samples the row, more are dealt out.
//   x [all blocks] -> heads: q k v, attention -> out + x -> norm, ffn1 -> ffn2 + x -> norm = next x
// Each arrow is an exchange, four a layer: the norms are computed by every block that needs them.
// Fewer would need k split (sums of partial products, other bits) or weights held several times.
//
// Exchanges. A value travels with its flag in one 8-byte word of device memory, written and read
// whole; a reader looks until the flag is that of the step. No barrier, no fence, no second trip.
// Each (layer, value) has one word, used again by the next step: whoever writes it then has,
// through all that was exchanged in between, waited for a result of everyone who reads it, because
// a block reads only what it needs for a result that the step needs. F16 inputs of products travel
// two in a word.
//
// Waiting ends: a block that sees nothing for `patience` sets *abort, at which all others end, too;
// the launch then ends without its records.
//
// Estimated cost of a step, 1 row, mnist-linear on an H200: 34 exchanges of 0.6 us; 112 dependent
// tensor-core steps a layer of 33 cycles, 15 us in all (q k v, out and ffn1 16 each, ffn2 64);
// norms and barriers 6 us, head and draw 2 us: about 43 us, where the graph of 41 kernels has 41
// starts of 0.5 us, the same chains without their weights at hand, and more trips to memory.
// Splitting k four ways would save 11 us and needs other bits; exchanging within a cluster's shared
// memory (0.2 us) would save up to 10 us with the same bits, for stages of up to 16 blocks.
//
// Thread: any. Tested by: tests/conformance/cuda_latency_test.cc, and the seam's tests.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/latency/step_model_cuda.h"
#include "kernels/cuda/sample/sample_cuda.h"

namespace rivulet::kernels {

inline constexpr int kLatencyMaxRows = 16;  // rows of a tensor-core tile
inline constexpr int kLocalHead = 128;

// How a launch spreads a model over blocks. Made by PlanLatency.
struct LatencyPlan {
  int rows = 0;  // most rows of a launch
  int stages = 0, stage_blocks = 0;
  bool states_stay = false;  // in shared memory, as weights do
  // q^T S is added in `groups` of features, then as a tree or one after another; q . z by `dots`
  // warps.
  int groups = 0, dots = 0;
  bool tree = false;
  // Offsets in shared memory, in floats.
  int x = 0, ld_x = 0;      // [rows][ld_x]: float32 rows that norms and residuals need
  int a = 0, ld_a = 0;      // [rows][ld_a]: the input of a product, F16
  int qkv = 0, ld_qkv = 0;  // [rows][ld_qkv]: q, k, v, gate of a head
  int phi = 0, sums = 0, dot = 0;
  int outputs = 0, rows_at = 0;
  int states = 0, ld_state = 0;  // [units][rows][ld_state]: S, z of a head
  int weights = 0;
  size_t shared_bytes = 0;
  // Words of the exchange, by their first.
  size_t layer_words = 0;  // of a layer: attention, y, ffn, y
  int ld_attention = 0, ld_y = 0, ld_ffn = 0, ld_outputs = 0;
  size_t outputs_at = 0, tokens_at = 0, words = 0;

  int blocks() const { return stages * stage_blocks; }
};

// The plan for up to `rows` rows on a device with `multiprocessors` and `shared_limit` bytes of
// shared memory a block: as many stages as weights allow to stay; where they do not at all, of no
// rows. REQUIRES: 1 <= rows <= kLatencyMaxRows.
LatencyPlan PlanLatency(const StepModel& model, int rows, int multiprocessors, size_t shared_limit);

struct LatencyArgs {
  StepModel model;
  LatencyPlan plan;
  // Rows of the first step; on the way they become those of the step after the last.
  CudaStepRows step;
  int rows = 0;   // at most plan.rows
  int steps = 0;  // no row draws more often
  // As for SampleCuda, with room for `rows` rows of outputs and scratch; `work`, `fed` and `next`
  // are not used.
  CudaSampleArgs sample;
  uint64_t* exchange = nullptr;  // [plan.words], 16-byte aligned
  // The launch uses first_flag ... first_flag + steps - 1: none that an exchange's word may hold.
  uint32_t first_flag = 0;
  uint32_t* abort = nullptr;  // 0
  uint64_t patience_nanoseconds = 0;
};

// Raises the kernel's limit of shared memory, and says whether the device can hold all blocks of
// `plan` at once. Once a device and plan, before its first launch.
cudaError_t PrepareLatencyCuda(const LatencyPlan& plan, int multiprocessors, size_t shared_limit,
                               bool* fits);
// Never overlaps its predecessor. Two such launches must not run at once on one device, though each
// is cooperative: the caller orders them.
cudaError_t LatencyCuda(const CudaLaunch& launch, const LatencyArgs& args);

}  // namespace rivulet::kernels
