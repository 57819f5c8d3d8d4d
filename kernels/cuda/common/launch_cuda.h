// SPDX-License-Identifier: Apache-2.0
// Where and how the CUDA operations run. All of them return what the launch returned, and never
// wait: an error inside a kernel shows at the next synchronize or query of the stream. Pointers in
// their arguments are device pointers unless said otherwise; arguments are copied at the launch, so
// launches can be captured into graphs.
//
// Overlap: with it a kernel may be on its way while the one before it in the stream still runs
// (programmatic dependent launch, compute capability 9). Every kernel here, each block of it, waits
// for the end of its predecessor before it reads or writes what kernels write, and only then lets
// its successor be brought on its way. So "ended" holds for all kernels before the predecessor,
// too, and more: when a block begins, all blocks of the predecessor have begun to work, hence the
// launch before the predecessor has ended and its writes are in memory. What was written two
// launches ago or earlier may therefore be read before the wait (past the first-level cache, which
// may hold older values). Weights are read so, and by the attention segments and states: between
// their writers (sampling, slot operations, the same layer's attention of the pass before) and the
// attention of a pass lie at least its embedding and its first product.
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

// Where a kernel writes its rows rounded to F16, as a product would round them (gemm_cuda.h), which
// then reads half the bytes and needs no launch that rounds them.
struct CudaHalfRows {
  uint16_t* data = nullptr;  // [rows, stride]; null: the rows stay float
  size_t stride = 0;
};

// Consecutive token rows of one slot: what one pass feeds to it. A pass has at most one segment a
// slot.
struct CudaSegment {
  int32_t slot = 0;       // the guard slot where nothing is fed
  int32_t first_row = 0;  // of the pass's token rows
  int32_t num_rows = 0;   // 0: inactive; slot and rows are not touched
  int32_t row = 0;        // index into the run's rows
};

}  // namespace rivulet::kernels
