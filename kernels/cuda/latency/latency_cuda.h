// SPDX-License-Identifier: Apache-2.0
// Many steps of few rows in one launch: each step is embedding, all layers, head and sampling,
// without the host and without a launch in between. For models whose F16 weights fit into the
// shared memory of all multiprocessors together. The weights stay there for the whole launch, and
// so do the states of the rows, if they fit as well.
//
// Bits: the same as with the other kernels. A product has one accumulator per output and k
// ascending, so blocks split columns, never k; attention adds in the order of its kernels; sampling
// is the same code. So the caller may choose the kernels for each step.
//
// Blocks. All are resident at once (a cooperative launch), one per multiprocessor. They form
// *stages* of equal size; layer l belongs to stage l mod stages. The blocks of a stage share the
// heads of a layer and the columns of its products: one block has a head's q, k, v and its
// attention, so that its state has one place; the rest is split evenly. The last layer's stage also
// has the model's head: the block that samples a row computes up to kLocalHead outputs itself; more
// outputs are split.
//   x [all blocks] -> heads: q k v, attention -> out + x -> norm, ffn1 -> ffn2 + x -> norm = next x
// Each arrow is an exchange, four a layer: the norms are computed by every block that needs them.
// Fewer exchanges would need k split (sums of partial products, other bits) or copies of weights.
//
// Exchanges. A value and its flag are one 8-byte word of device memory, written and read whole; a
// reader polls until the flag is the flag of the step. This needs no barrier, no fence and no
// second trip. Each (layer, value) has one word, which the next step uses again. By then its writer
// has waited, through the exchanges in between, for a result of every reader of the word, because a
// block reads only what it needs for a result that the step needs. F16 inputs of products share a
// word in pairs.
//
// Waiting is limited: a block that receives nothing for `patience` sets *abort, which ends all
// other blocks, too; the launch then ends without its records.
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
  bool states_stay = false;  // states stay in shared memory, as weights do
  // q^T S is summed in `groups` groups of features, which are then added as a tree or in order;
  // `dots` warps sum q . z.
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
  // Words of the exchange: sizes, and offsets of the first words.
  size_t layer_words = 0;  // of a layer: attention, y, ffn, y
  int ld_attention = 0, ld_y = 0, ld_ffn = 0, ld_outputs = 0;
  size_t outputs_at = 0, tokens_at = 0, words = 0;

  int blocks() const { return stages * stage_blocks; }
};

// The plan for up to `rows` rows on a device with `multiprocessors` and `shared_limit` bytes of
// shared memory a block: with as many stages as leave the weights in shared memory; with rows = 0
// if none do. REQUIRES: 1 <= rows <= kLatencyMaxRows.
LatencyPlan PlanLatency(const StepModel& model, int rows, int multiprocessors, size_t shared_limit);

struct LatencyArgs {
  StepModel model;
  LatencyPlan plan;
  // Rows of the first step; the launch replaces them by the rows of the step after its last.
  CudaStepRows step;
  int rows = 0;   // at most plan.rows
  int steps = 0;  // no row draws more tokens
  // As for SampleCuda, with room for `rows` rows of outputs and scratch; `work`, `fed` and `next`
  // are not used.
  CudaSampleArgs sample;
  uint64_t* exchange = nullptr;  // [plan.words], 16-byte aligned
  // The launch uses the flags first_flag ... first_flag + steps - 1; no word may hold one of them
  // before.
  uint32_t first_flag = 0;
  uint32_t* abort = nullptr;  // 0
  uint64_t patience_nanoseconds = 0;
};

// Raises the kernel's limit of shared memory, and tells whether the device can hold all blocks of
// `plan` at once. Call once per device and plan, before its first launch.
cudaError_t PrepareLatencyCuda(const LatencyPlan& plan, int multiprocessors, size_t shared_limit,
                               bool* fits);
// Never overlaps its predecessor. Two such launches must not run at once on one device: the caller
// orders them.
cudaError_t LatencyCuda(const CudaLaunch& launch, const LatencyArgs& args);

}  // namespace rivulet::kernels
