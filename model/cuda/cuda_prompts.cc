// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_prompts.h"

#include <algorithm>
#include <utility>

#include "model/base/error.h"
#include "model/cuda/cuda_run_block.h"

namespace rivulet {
namespace {

constexpr int kLeast = 8, kStep = 128, kMost = 1024;
constexpr int kStepRows = 1;  // bucket of the steps after such a first step

}  // namespace

std::vector<int> CudaPromptBuckets(int max_tokens) {
  std::vector<int> buckets;
  for (int rows = kLeast; rows <= std::min(kMost, max_tokens);
       rows += rows < kStep ? rows : kStep) {
    buckets.push_back(rows);
  }
  return buckets;
}

absl::StatusOr<CudaPrompts> CudaPrompts::Capture(const CudaSteps& steps, CudaQueue& queue,
                                                 void* block, const BackendLimits& limits) {
  CudaPrompts prompts;
  prompts.buckets_ = CudaPromptBuckets(limits.max_tokens);
  for (const int rows : prompts.buckets_) {
    const CudaRunBlock on_device = CudaRunBlock::PlacePrompt(block, kStepRows, rows);
    RIVULET_ASSIGN_OR_RETURN(
        CudaGraph graph, CudaGraph::Capture(queue.stream(), queue.graphs(), [=, &steps, &queue] {
          return steps.Prompt(queue.launch(), on_device, rows);
        }));
    prompts.graphs_.push_back(std::move(graph));
    RIVULET_ASSIGN_OR_RETURN(void* const room, queue.Stage(on_device.bytes));
    const CudaRunBlock host = CudaRunBlock::PlacePrompt(room, kStepRows, rows);
    FillIdleCudaRunBlock(kStepRows, host);
    PadCudaPrompt(0, 0, rows, host);
    RIVULET_CUDA_RETURN_IF_ERROR(
        cudaMemcpyAsync(block, room, on_device.bytes, cudaMemcpyHostToDevice, queue.stream()));
    RIVULET_RETURN_IF_ERROR(prompts.graphs_.back().Launch(queue.stream()));
  }
  return prompts;
}

int CudaPrompts::RowsFor(const CudaRunPlan& plan) const {
  const bool fits = !plan.plain && plan.rows == 1 && plan.outputs.size() <= 1 && plan.raw.empty();
  if (!fits || buckets_.empty() || plan.token_rows() > buckets_.back()) return 0;
  return *std::lower_bound(buckets_.begin(), buckets_.end(), plan.token_rows());
}

absl::Status CudaPrompts::Launch(int rows, cudaStream_t stream) const {
  const auto at = std::lower_bound(buckets_.begin(), buckets_.end(), rows) - buckets_.begin();
  return graphs_[size_t(at)].Launch(stream);
}

}  // namespace rivulet
