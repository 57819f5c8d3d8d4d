// SPDX-License-Identifier: Apache-2.0
// The arrays that carry a run to the device, in one piece of memory so that one copy suffices: the
// inputs and work of every row of a step, which each step on the device writes for the next, and
// the inputs of the first step if it differs from the later ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/sample/sample_cuda.h"
#include "model/backend.h"
#include "model/cuda/cuda_run_plan.h"

namespace rivulet {

// Pointers into one block, on the host or on the device.
struct CudaRunBlock {
  // [bucket]: rows of a step; rows behind the run's are inactive and use the guard slot.
  kernels::CudaStepRows step;

  // The first step, if it is not plain.
  kernels::CudaOutputWork* outputs = nullptr;  // [output rows]
  kernels::CudaSegment* segments = nullptr;    // [rows] long segments first, else in row order
  int64_t* positions = nullptr;                // [token rows]
  int32_t* tokens = nullptr;                   // [token rows]
  int32_t* gather = nullptr;                   // [output rows] their token rows
  uint8_t* as_output = nullptr;                // [rows]

  size_t bytes = 0;  // of the whole block

  // The block of a run at `base`. With the same bucket `step` has the same addresses.
  static CudaRunBlock Place(void* base, int bucket, const CudaRunPlan& plan);
  static CudaRunBlock PlacePlain(void* base, int bucket);
  // The block of one row that feeds up to `token_rows` tokens and wants at most one output.
  static CudaRunBlock PlacePrompt(void* base, int bucket, int token_rows);
  static size_t MaxBytes(const BackendLimits& limits);
};

// Writes the block of `run` (host memory). `sequence`: of its records.
void FillCudaRunBlock(const Run& run, const CudaRunPlan& plan, int bucket, uint32_t sequence,
                      const CudaRunBlock& block);
// Pads `tokens` token rows and `outputs` outputs to `token_rows` and one; without tokens also the
// segment.
void PadCudaPrompt(int tokens, int outputs, int token_rows, const CudaRunBlock& block);
// A block whose rows are all inactive.
void FillIdleCudaRunBlock(int bucket, const CudaRunBlock& block);

}  // namespace rivulet
