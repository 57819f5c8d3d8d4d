// SPDX-License-Identifier: Apache-2.0
// Records from head outputs: ln p(target), draws, the likeliest tokens; and the next step's inputs.
#include "kernels/cuda/sample/sample_row_cuda.h"

namespace rivulet::kernels {
namespace {

constexpr int kCountThreads = 128;
// Few threads for a short row, because barriers then cost more than loads. Rows of mixtures count
// as short, whatever their number of levels.
constexpr int kShortRow = 2048, kShortRowThreads = 128;
constexpr int kLongAhead = 4;  // loads of a thread in flight
int threads_for_test = 0;

__global__ void __launch_bounds__(kShortRowThreads, 5) Sample(CudaSampleArgs p) {
  WaitForPredecessor();
  SampleRow<1>(p, static_cast<int>(blockIdx.x));
}

// At least one block per multiprocessor: by default the compiler would spill registers to fit two.
__global__ void __launch_bounds__(kMostRowThreads, 1) SampleLong(CudaSampleArgs p) {
  p.mixture.mixtures = 0;  // so that the compiler leaves out the code for mixtures
  WaitForPredecessor();
  SampleRow<kLongAhead>(p, static_cast<int>(blockIdx.x));
}

__global__ void __launch_bounds__(kCountThreads) CountTokens(CudaCountArgs p) {
  WaitForPredecessor();
  const CudaSegment segment = p.segments[blockIdx.x];
  if (segment.num_rows == 0) return;
  uint32_t* seen = p.samplers[segment.slot].seen;
  if (seen == nullptr) return;
  const bool as_output = p.as_output[segment.row] != 0;
  for (int i = static_cast<int>(threadIdx.x); i < segment.num_rows; i += kCountThreads) {
    uint32_t* word = seen + p.tokens[segment.first_row + i];
    if (as_output) {
      atomicAdd(word, 1u);
    } else {
      atomicOr(word, kSeenInPrompt);
    }
  }
}

}  // namespace

cudaError_t PrepareSampleCuda() { return PrepareKernels(Sample, SampleLong, CountTokens); }

cudaError_t SampleCuda(const CudaLaunch& launch, const CudaSampleArgs& args) {
  const int tokens = args.mixture.mixtures > 0 ? args.mixture.levels : args.num_outputs;
  const auto in_quads = [](const float* rows, int ld) {
    return reinterpret_cast<uintptr_t>(rows) % 16 == 0 && ld % 4 == 0;
  };
  if (!in_quads(args.outputs, args.ld_outputs) || !in_quads(args.scratch, args.ld_scratch)) {
    return cudaErrorInvalidValue;
  }
  if (args.rows < 0 || args.num_outputs < 1 || args.ld_outputs < args.num_outputs ||
      args.ld_scratch < tokens ||
      (args.mixture.mixtures > 0 && args.num_outputs != 3 * args.mixture.mixtures)) {
    return cudaErrorInvalidValue;
  }
  const bool mixture = args.mixture.mixtures > 0;
  const bool is_short = mixture || args.num_outputs <= kShortRow;
  int threads = is_short ? kShortRowThreads : kMostRowThreads;
  if (threads_for_test > 0 && !mixture) threads = threads_for_test;
  if (is_short && threads <= kShortRowThreads) {
    return LaunchBlocks(launch, Sample, args.rows, threads, RowSharedBytes(1, threads), args);
  }
  return LaunchBlocks(launch, SampleLong, args.rows, threads, RowSharedBytes(kLongAhead, threads),
                      args);
}

cudaError_t CountTokensCuda(const CudaLaunch& launch, const CudaCountArgs& args) {
  return LaunchBlocks(launch, CountTokens, args.num_segments, kCountThreads, 0, args);
}

void SetCudaSampleThreadsForTest(int threads) { threads_for_test = threads; }

}  // namespace rivulet::kernels
