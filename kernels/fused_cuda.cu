// SPDX-License-Identifier: Apache-2.0
// Steps of many rows in one launch: blocks that read for themselves, and the way to those that
// share.
#include "kernels/fused_clusters_cuda.h"
#include "kernels/fused_cuda.h"
#include "kernels/fused_phases_cuda.h"

namespace rivulet::kernels {

cudaError_t FindFusedResident(const StepModel& model, int multiprocessors, int sm,
                              size_t shared_limit, FusedResident* resident) {
  *resident = {};
  resident->blocks[0] = multiprocessors;
  if (sm != kClusterTarget) return cudaSuccess;
  for (int i = 1; i < kFusedClusterSizes; ++i) {
    int clusters = 0;
    const cudaError_t error = CountFusedClusters(model, 1 << i, shared_limit, &clusters);
    if (error != cudaSuccess) return error;
    resident->blocks[i] = clusters << i;
  }
  return cudaSuccess;
}

cudaError_t PrepareFusedCuda(const StepModel& model, const FusedPlan& plan, bool clusters,
                             size_t shared_limit) {
  const cudaError_t error = AllowFused<false>(model, plan.rows, shared_limit);
  if (error != cudaSuccess || !clusters) return error;
  return AllowFusedClusters(model, plan.rows, shared_limit);
}

cudaError_t FusedCuda(const CudaLaunch& launch, const FusedArgs& args) {
  if (args.rows < 1 || args.steps < 1 || args.plan.rows < 1 || args.plan.rows > kFusedMaxRows ||
      args.model.type != WeightType::kF16 || args.sample.num_outputs != args.model.head.n ||
      args.cluster < 1 || args.cluster >= 1 << kFusedClusterSizes) {
    return cudaErrorInvalidValue;
  }
  if (args.cluster > 1) return StartFusedClusters(launch, args);
  CudaLaunch alone = launch;
  alone.overlap = false;
  const int blocks = (args.rows + args.plan.rows - 1) / args.plan.rows;
  return WithFusedKernel<false>(args.model, args.plan.rows, [&](auto kernel) {
    const KernelConfig config(alone, dim3(static_cast<unsigned>(blocks)), kFusedThreads,
                              args.plan.shared_bytes);
    return cudaLaunchKernelEx(config.get(), kernel, args);
  });
}

}  // namespace rivulet::kernels
