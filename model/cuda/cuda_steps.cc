// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_steps.h"

#include <algorithm>
#include <vector>

#include "kernels/cuda/common/slot_cuda.h"
#include "model/base/error.h"
#include "model/cuda/cuda_model_args.h"

namespace rivulet {

using kernels::CudaLaunch;

absl::Status CudaSteps::Prepare() {
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::PrepareSampleCuda());
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::PrepareSlotCuda());
  return absl::OkStatus();
}

absl::Status CudaSteps::Sample(const CudaLaunch& launch, const Wanted& wanted, int first,
                               int rows) const {
  kernels::CudaSampleArgs args = CudaSampling(config_, slots_, records_, outputs_);
  args.rows = rows;
  args.work = wanted.work + first;
  args.fed = wanted.fed == nullptr ? nullptr : wanted.fed + first;
  args.next = wanted.next;
  return CudaStatus(kernels::SampleCuda(launch, args), "launching the sampling");
}

absl::Status CudaSteps::Step(const CudaLaunch& launch, const CudaRunBlock& block,
                             int bucket) const {
  const kernels::CudaStepRows& step = block.step;
  RIVULET_RETURN_IF_ERROR(network_.Layers(
      launch, {step.tokens, step.positions, step.segments, bucket, bucket, 0, nullptr, bucket}));
  const Wanted wanted = {step.outputs, step.tokens, step};
  for (int first = 0; first < bucket; first += outputs_.head_rows) {
    const int rows = std::min(outputs_.head_rows, bucket - first);
    RIVULET_RETURN_IF_ERROR(network_.Head(launch, first, rows));
    RIVULET_RETURN_IF_ERROR(Sample(launch, wanted, first, rows));
  }
  return absl::OkStatus();
}

absl::Status CudaSteps::Prompt(const CudaLaunch& launch, const CudaRunBlock& block,
                               int token_rows) const {
  const int num_long = token_rows >= kCudaLongSegment ? 1 : 0;
  RIVULET_RETURN_IF_ERROR(network_.Layers(launch, {block.tokens, block.positions, block.segments,
                                                   token_rows, 1, num_long, block.gather, 1}));
  RIVULET_RETURN_IF_ERROR(network_.Head(launch, 0, 1));
  return Sample(launch, {block.outputs, nullptr, block.step}, 0, 1);
}

absl::Status CudaSteps::Count(const CudaLaunch& launch, const CudaRunBlock& block, int rows) const {
  kernels::CudaCountArgs args;
  args.segments = block.segments;
  args.num_segments = rows;
  args.tokens = block.tokens;
  args.as_output = block.as_output;
  args.samplers = slots_.samplers();
  return CudaStatus(kernels::CountTokensCuda(launch, args), "launching the count of tokens");
}

absl::Status CudaSteps::First(CudaQueue& queue, const CudaRunBlock& block, const CudaRunPlan& plan,
                              bool count) const {
  const CudaLaunch& launch = queue.launch();
  const int num_outputs = int(plan.outputs.size());
  const bool all = num_outputs == plan.token_rows();
  const CudaPass pass = {block.tokens,
                         block.positions,
                         block.segments,
                         plan.token_rows(),
                         plan.rows,
                         plan.num_long,
                         all ? nullptr : block.gather,
                         num_outputs};
  const Wanted wanted = {block.outputs, nullptr, block.step};
  if (count) RIVULET_RETURN_IF_ERROR(Count(launch, block, plan.rows));
  RIVULET_RETURN_IF_ERROR(network_.Layers(launch, pass));
  auto raw = plan.raw.begin();
  std::vector<float*> destinations;
  for (int first = 0; first < num_outputs; first += outputs_.head_rows) {
    const int rows = std::min(outputs_.head_rows, num_outputs - first);
    RIVULET_RETURN_IF_ERROR(network_.Head(launch, first, rows));
    RIVULET_RETURN_IF_ERROR(Sample(launch, wanted, first, rows));
    // One copy for neighbouring rows.
    while (raw != plan.raw.end() && raw->output_row < first + rows) {
      const int begin = raw->output_row;
      destinations.clear();
      for (; raw != plan.raw.end() && raw->output_row < first + rows &&
             raw->output_row == begin + int(destinations.size());
           ++raw) {
        destinations.push_back(raw->destination);
      }
      const float* const from =
          outputs_.outputs + size_t(begin - first) * size_t(outputs_.ld_outputs);
      RIVULET_RETURN_IF_ERROR(queue.CopyOut(from, size_t(outputs_.ld_outputs),
                                            size_t(config_.output_size()), destinations));
    }
  }
  return absl::OkStatus();
}

}  // namespace rivulet
