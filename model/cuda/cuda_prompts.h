// SPDX-License-Identifier: Apache-2.0
// CudaPrompts: the first step of a run that feeds one prompt alone, captured for buckets of token
// counts. Launched one by one, its kernels take the host, by estimate, about as long as a prompt of
// some hundred tokens takes the device; with more tokens the device is the slower one.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/backend.h"
#include "model/cuda/cuda_device.h"
#include "model/cuda/cuda_queue.h"
#include "model/cuda/cuda_run_plan.h"
#include "model/cuda/cuda_steps.h"

namespace rivulet {

// Token counts for which a prompt is captured, ascending: at most about half of the rows idle, from
// 512 tokens on a fifth.
std::vector<int> CudaPromptBuckets(int max_tokens);

// Thread: one.
class CudaPrompts {
 public:
  // Captures all of them and runs each once, with padding rows only. `block`: where runs arrive;
  // `steps` and it must live as long.
  static absl::StatusOr<CudaPrompts> Capture(const CudaSteps& steps, CudaQueue& queue, void* block,
                                             const BackendLimits& limits);

  // The number of token rows of the graph for `plan`'s first step; 0: there is none for it.
  int RowsFor(const CudaRunPlan& plan) const;
  // REQUIRES: rows = RowsFor(plan) > 0; the block was placed and padded for it.
  absl::Status Launch(int rows, cudaStream_t stream) const;

 private:
  std::vector<int> buckets_;
  std::vector<CudaGraph> graphs_;  // [buckets_]
};

}  // namespace rivulet
