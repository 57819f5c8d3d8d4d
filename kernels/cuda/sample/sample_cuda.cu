// SPDX-License-Identifier: Apache-2.0
// Records from head outputs: ln p(target), draws, the likeliest tokens; and the next step's inputs.
#include "kernels/cuda/sample/sample_row_cuda.h"

namespace rivulet::kernels {
namespace {

__global__ void __launch_bounds__(kRowThreads, 6) Sample(CudaSampleArgs p) {
  WaitForPredecessor();
  RowShared& shared = *static_cast<RowShared*>(SharedMemory());
  SampleRow(p, static_cast<int>(blockIdx.x), shared, [](bool, int32_t) {});
}

__global__ void __launch_bounds__(kRowThreads) CountTokens(CudaCountArgs p) {
  WaitForPredecessor();
  const CudaSegment segment = p.segments[blockIdx.x];
  if (segment.num_rows == 0) return;
  uint32_t* seen = p.samplers[segment.slot].seen;
  if (seen == nullptr) return;
  const bool as_output = p.as_output[segment.row] != 0;
  for (int i = static_cast<int>(threadIdx.x); i < segment.num_rows; i += kRowThreads) {
    uint32_t* word = seen + p.tokens[segment.first_row + i];
    if (as_output) {
      atomicAdd(word, 1u);
    } else {
      atomicOr(word, kSeenInPrompt);
    }
  }
}

}  // namespace

cudaError_t PrepareSampleCuda() { return PrepareKernels(Sample, CountTokens); }

cudaError_t SampleCuda(const CudaLaunch& launch, const CudaSampleArgs& args) {
  const int tokens = args.mixture.mixtures > 0 ? args.mixture.levels : args.num_outputs;
  if (args.rows < 0 || args.num_outputs < 1 || args.ld_outputs < args.num_outputs ||
      args.ld_scratch < tokens ||
      (args.mixture.mixtures > 0 && args.num_outputs != 3 * args.mixture.mixtures)) {
    return cudaErrorInvalidValue;
  }
  return LaunchBlocks(launch, Sample, args.rows, kRowThreads, sizeof(RowShared), args);
}

cudaError_t CountTokensCuda(const CudaLaunch& launch, const CudaCountArgs& args) {
  return LaunchBlocks(launch, CountTokens, args.num_segments, kRowThreads, 0, args);
}

}  // namespace rivulet::kernels
