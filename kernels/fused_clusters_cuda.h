// SPDX-License-Identifier: Apache-2.0
// What fused_clusters_cuda.cu, compiled for one target alone, offers fused_cuda.cu. Included by
// these two only.
#pragma once

#include "kernels/fused_cuda.h"

namespace rivulet::kernels {

// The compute capability of that target (cluster_cuda.h).
inline constexpr int kClusterTarget = 90;

cudaError_t AllowFusedClusters(const StepModel& model, int rows, size_t shared_limit);
// Clusters of `size` blocks that the device runs at once, all shared memory given to each block.
cudaError_t CountFusedClusters(const StepModel& model, int size, size_t shared_limit,
                               int* clusters);
// REQUIRES: what FusedCuda checks.
cudaError_t StartFusedClusters(const CudaLaunch& launch, const FusedArgs& args);

}  // namespace rivulet::kernels
