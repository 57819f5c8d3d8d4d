// SPDX-License-Identifier: Apache-2.0
// Steps of few rows in one launch.
#include "kernels/cuda/latency/latency_cuda.h"
#include "kernels/cuda/latency/latency_phases_cuda.h"

namespace rivulet::kernels {
namespace {

template <bool kF16, bool kStay>
__global__ void __launch_bounds__(kLatencyThreads, 1)
    Latency(const __grid_constant__ LatencyArgs p) {
  LatencyBlock<kF16, kStay> block(p);
  if (!block.Load()) return;
  for (int step = 0; step < p.steps && block.Begin(step); ++step) {
    for (int l = block.stage(); l < p.model.attention.layout.layers; l += p.plan.stages) {
      if (!block.Layer(l)) return;
    }
    if (!block.Head()) return;
  }
  if (!block.gave_up()) block.StoreStates();
}

using Kernel = void (*)(LatencyArgs);
Kernel KernelOf(const StepModel& model, const LatencyPlan& plan) {
  if (model.type == WeightType::kF16) {
    return plan.weights_stay ? Latency<true, true> : Latency<true, false>;
  }
  return plan.weights_stay ? Latency<false, true> : Latency<false, false>;
}

}  // namespace

cudaError_t PrepareLatencyCuda(const StepModel& model, const LatencyPlan& plan, int multiprocessors,
                               size_t shared_limit, bool* fits) {
  const Kernel kernel = KernelOf(model, plan);
  cudaError_t error = PreferSharedMemory({KernelAddress(kernel)});
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_limit));
  if (error != cudaSuccess) return error;
  int blocks = 0;
  error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kLatencyThreads,
                                                        plan.shared_bytes);
  *fits = int64_t{blocks} * multiprocessors >= plan.blocks();
  return error;
}

cudaError_t LatencyCuda(const CudaLaunch& launch, const LatencyArgs& args) {
  if (args.rows < 1 || args.rows > args.plan.rows || args.steps < 1 ||
      args.plan.rows > kLatencyMaxRows || args.sample.num_outputs != args.model.head.n) {
    return cudaErrorInvalidValue;
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(args.plan.blocks()));
  config.blockDim = dim3(kLatencyThreads);
  config.dynamicSmemBytes = args.plan.shared_bytes;
  config.stream = launch.stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, KernelOf(args.model, args.plan), args);
}

}  // namespace rivulet::kernels
