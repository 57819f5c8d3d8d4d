// SPDX-License-Identifier: Apache-2.0
// CudaPrompts: the first step of a run that feeds only one prompt, captured for buckets of token
// counts. By estimate the host needs as long to launch its kernels one by one as the device needs
// for a prompt of some hundred tokens; with more tokens the device is slower.
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

// Token counts for which a prompt is captured, ascending: at most about half of the rows are idle,
// from 512 tokens on a fifth.
std::vector<int> CudaPromptBuckets(int max_tokens);

// Thread: one.
class CudaPrompts {
 public:
  // Captures a graph for each count and runs it once, with padding rows only. `block`: where runs
  // arrive; `steps` and `block` must outlive this.
  static absl::StatusOr<CudaPrompts> Capture(const CudaSteps& steps, CudaQueue& queue, void* block,
                                             const BackendLimits& limits);

  // The number of token rows of the graph for `plan`'s first step; 0: there is no graph for it.
  int RowsFor(const CudaRunPlan& plan) const;
  // REQUIRES: rows = RowsFor(plan) > 0; the block was placed and padded for it.
  absl::Status Launch(int rows, cudaStream_t stream) const;

 private:
  std::vector<int> buckets_;
  std::vector<CudaGraph> graphs_;  // [buckets_]
};

}  // namespace rivulet
