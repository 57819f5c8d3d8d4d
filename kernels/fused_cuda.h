// SPDX-License-Identifier: Apache-2.0
// Steps of many rows in one launch: embedding, all layers, head, sampling, again and again. A block
// owns up to 32 rows for the whole launch, so blocks never wait for each other; activations stay in
// its shared memory, and what is read from memory is every weight once a block and step, and every
// state once (and written back once). For F16 weights and the states of
// linear_attention_shape_cuda.h.
//
// Bits: those of the other kernels. Products have one accumulator an output and k ascending, in the
// fragments of gemm_f16_cuda.cu; attention adds in the order of its special kernels; sampling is
// their code. So whoever runs a step is free to choose for each.
//
// Streams. Every warp has a ring in shared memory, in which all that it will read arrives in the
// order of its use: *pieces* of 4 KiB, a block of weights (4 tiles of 8 columns x 64 k) or of a
// state (1024 values of S, and z with the first). The ring is filled `depth` pieces ahead by
// asynchronous copies, across phases, layers and steps: states come while products run and the
// other way round. The order of a step is the same for every step and written down once, as a list
// a warp (FusedPiece). A lane copies the 16 bytes that it will itself use, so the ring needs no
// barrier. States are written back from registers.
//
// A step of a block, phases with barriers between (n heads a round, as many as memory allows):
//   embedding | per layer: per round [ q k v of n heads | phi | attention, a (row, head) a warp ],
//   out + x | norm | ffn1 | ffn2 + x | norm | head | draw, a row a team of 128 threads
//
// Clusters, on compute capability 9.0: the blocks of a cluster of 2 or 4 read weights once for all
// of them, by multicast (fused_transfer_cuda.h). Elsewhere every block reads for itself. Same bits.
//
// Cost of a step on paper, mnist-linear on an H200 (12.6 MB of weights, 0.54 MB of state a row read
// and written; 132 blocks at once in clusters of 2, 120 in clusters of 4); the largest line is the
// least it can be:
//                                                  4096 rows, 32 a block    1024, 9 a block
//   states, at 3.97 TB/s                           2.21 GB    558 us         0.55 GB   140 us
//   second-level cache, at 6 TB/s: states, and
//   weights once a cluster                 2 x 64  3.02 GB    503 us  4 x 29 0.92 GB   153 us
//   (weights once a block                          3.82 GB    640 us         1.99 GB   331 us)
//   into a multiprocessor, at 126 GB/s             16.9 MB    134 us         15.0 MB   119 us
//   its shared memory, at 253 GB/s: rings in and
//   out, rows                                        58 MB    230 us           38 MB   151 us
//   tensor cores, at 500 TFLOP/s                   52 GFLOP   105 us
//
// Thread: any. Tested by: tests/parity/cuda_fused_plan_test.cc,
// tests/conformance/cuda_fused_test.cc
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/sample_cuda.h"
#include "kernels/step_model_cuda.h"

namespace rivulet::kernels {

inline constexpr int kFusedMaxRows = 32;  // of a block: two tensor-core tiles
inline constexpr int kFusedThreads = 256, kFusedWarps = kFusedThreads / 32;
inline constexpr int kFusedMaxDepth = 6;

// What a warp reads next. 16 bytes.
struct FusedPiece {
  uint64_t at = 0;      // weights: address of the first tile's block; a state: byte in the slot
  uint32_t stride = 0;  // weights: bytes from a tile to the next; a state: byte of z, or kNoZ
  int16_t row = 0;      // of the block whose state it is; kWeights, or kIdle: nothing
  uint8_t tiles = 0, steps = 0;  // weights: up to 4 tiles, up to 2 steps of 32 k

  static constexpr int16_t kWeights = -1, kIdle = -2;
  static constexpr uint32_t kNoZ = ~0u;
};
static_assert(sizeof(FusedPiece) == 16);

// How a block uses its shared memory and shares its work among warps. Made by PlanFused.
struct FusedPlan {
  int rows = 0;         // of a block at most; 0: no plan
  int round_heads = 0;  // heads whose q, k, v are there at once: a divisor of the heads
  int depth = 0;        // pieces of a ring
  int slot_bytes = 0;   // of a piece in the ring, z included
  // Offsets in shared memory, in floats; ld: of a row.
  int x = 0, ld_x = 0;                  // float32 rows that norms and residuals need
  int a = 0, ld_a = 0;                  // the same as the input of a product
  int qkv = 0, ld_qkv = 0;              // of a round: values, queries, keys, gates
  int phi = 0, ld_phi = 0;              // [head][q, k][features], where phi is not elu
  int attention = 0, ld_attention = 0;  // the input of the product out
  int ffn = 0, ld_ffn = 0;              // of ffn2; lies where qkv, phi and attention do
  int rows_at = 0, barriers = 0, ring = 0;
  size_t shared_bytes = 0;
  // Pieces begin[w] .. begin[w + 1] - 1 of the list are warp w's in a step.
  int begin[kFusedWarps + 1] = {};

  int pieces() const { return begin[kFusedWarps]; }
};

// Null if a kernel for `model` exists, else the reason with the values.
const char* CheckFusedCuda(const StepModel& model);
// The plan for up to `rows` rows a block, for fewer where no more fit, with rings as deep as shared
// memory allows. No rows where not even one fits beside rings of two pieces. `model`: shapes.
// REQUIRES: CheckFusedCuda is satisfied, 1 <= rows <= kFusedMaxRows.
FusedPlan PlanFused(const StepModel& model, int rows, size_t shared_limit);
// Bytes of shared memory of a block that has one row.
size_t LeastFusedBytes(const StepModel& model);
// Writes the list of `plan`: [plan.pieces()]. `layers`: host memory, with device addresses.
void ListFusedPieces(const StepModel& model, const StepLayer* layers, const FusedPlan& plan,
                     FusedPiece* pieces);

// Blocks that a device runs at once in clusters of 1, 2 and 4; 0: it has no such clusters.
inline constexpr int kFusedClusterSizes = 3;
struct FusedResident {
  int blocks[kFusedClusterSizes] = {};
};
// How a launch of so many rows spreads over the device: in as few waves of blocks as can be, then
// in clusters as large as can be, then with as few rows a block. `most`: rows a block.
struct FusedSpread {
  int rows = 0, cluster = 1;
};
FusedSpread SpreadFused(int rows, int most, const FusedResident& resident);

struct FusedArgs {
  StepModel model;
  FusedPlan plan;
  const FusedPiece* pieces = nullptr;  // [plan.pieces()], device memory
  // Rows of the first step; on the way they become those of the step after the last.
  CudaStepRows step;
  int rows = 0;
  int steps = 0;    // no row draws more often
  int cluster = 1;  // blocks that share the reading of weights: 1, 2, 4
  // As for SampleCuda, with room for `rows` rows of outputs and scratch; `work`, `fed` and `next`
  // are not used.
  CudaSampleArgs sample;
};

// What `resident` is on the current device; `sm`: its compute capability, 90 for 9.0.
cudaError_t FindFusedResident(const StepModel& model, int multiprocessors, int sm,
                              size_t shared_limit, FusedResident* resident);
// Raises the limit of shared memory of the kernels for `model` and `plan`, with `clusters` also of
// those in clusters. Once a device and plan, before its first launch.
cudaError_t PrepareFusedCuda(const StepModel& model, const FusedPlan& plan, bool clusters,
                             size_t shared_limit);
// Never overlaps its predecessor.
cudaError_t FusedCuda(const CudaLaunch& launch, const FusedArgs& args);

}  // namespace rivulet::kernels
