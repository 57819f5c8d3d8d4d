// SPDX-License-Identifier: Apache-2.0
// The arrays that carry a run to the device, in one piece of memory so that one copy brings them:
// what every row of a step feeds and wants, which steps then hand to each other on the device, and,
// where the first step is not like the others, what that one feeds.
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
  // [bucket]: rows of a step; those behind the run's are inactive and use the guard slot.
  kernels::CudaStepRows step;

  // The first step, where it is not a step like any.
  kernels::CudaOutputWork* outputs = nullptr;  // [output rows]
  kernels::CudaSegment* segments = nullptr;    // [rows] long ones first, else in row order
  int64_t* positions = nullptr;                // [token rows]
  int32_t* tokens = nullptr;                   // [token rows]
  int32_t* gather = nullptr;                   // [output rows] their token rows
  uint8_t* as_output = nullptr;                // [rows]

  size_t bytes = 0;  // of the whole block

  // The block of a run at `base`. Where the bucket is the same, so are the places of `step`.
  static CudaRunBlock Place(void* base, int bucket, const CudaRunPlan& plan);
  static CudaRunBlock PlacePlain(void* base, int bucket);
  // One row that feeds up to `token_rows` tokens and wants one output at most.
  static CudaRunBlock PlacePrompt(void* base, int bucket, int token_rows);
  static size_t MaxBytes(const BackendLimits& limits);
};

// Writes the block of `run` (host memory). `sequence`: what its records carry.
void FillCudaRunBlock(const Run& run, const CudaRunPlan& plan, int bucket, uint32_t sequence,
                      const CudaRunBlock& block);
// Makes `tokens` token rows and `outputs` outputs that are there up to `token_rows` and one, with
// padding rows; without any tokens also the segment.
void PadCudaPrompt(int tokens, int outputs, int token_rows, const CudaRunBlock& block);
// A block whose rows are all inactive.
void FillIdleCudaRunBlock(int bucket, const CudaRunBlock& block);

}  // namespace rivulet
