// SPDX-License-Identifier: Apache-2.0
// Where and how the CUDA operations run. All operations return the result of the launch and never
// wait: an error inside a kernel shows at the next synchronize or query of the stream. Pointers in
// their arguments are device pointers unless said otherwise; arguments are copied at the launch, so
// launches can be captured into graphs.
//
// Overlap: a kernel may start while its predecessor in the stream still runs (programmatic
// dependent launch, compute capability 9). Every block of every kernel waits for the end of the
// predecessor before it reads or writes what kernels write, and only then lets the successor start.
// So the wait covers all earlier kernels, too. And when a block begins, all blocks of the
// predecessor have passed their waits, so the launch before the predecessor has ended and its
// writes are in memory. What was written two launches ago or earlier may therefore be read before
// the wait (past the first-level cache, which may hold older values). Weights are read in this way,
// and so are segments and states in the attention: between their writers (sampling, slot
// operations, the same layer's attention of the pass before) and the attention of a pass lie at
// least the embedding and the first product of that pass.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace rivulet::kernels {

struct CudaLaunch {
  cudaStream_t stream = nullptr;
  bool overlap = false;     // only on compute capability 9 and later; launches fail elsewhere
  int multiprocessors = 1;  // of the device; decides tile shapes, never bits
};

// Where a kernel writes its rows rounded to F16, as a product would round them (gemm_cuda.h). The
// product then reads half the bytes, and no launch has to round the rows.
struct CudaHalfRows {
  uint16_t* data = nullptr;  // [rows, stride]; null: the rows stay float
  size_t stride = 0;
};

// Consecutive token rows of one slot, fed to it by one pass. A pass has at most one segment per
// slot.
struct CudaSegment {
  int32_t slot = 0;       // the guard slot where nothing is fed
  int32_t first_row = 0;  // of the pass's token rows
  int32_t num_rows = 0;   // 0: inactive; slot and rows are not touched
  int32_t row = 0;        // index into the run's rows
};

}  // namespace rivulet::kernels
