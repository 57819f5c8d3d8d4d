// SPDX-License-Identifier: Apache-2.0
// Steps of many rows in one launch: blocks of clusters, which share the reading of weights.
#include "kernels/fused_clusters_cuda.h"
#include "kernels/fused_phases_cuda.h"

namespace rivulet::kernels {
namespace {

// A launch in clusters; `get()` is for the runtime. Not copied: it points into itself.
class ClusterConfig {
 public:
  ClusterConfig(cudaStream_t stream, unsigned blocks, int size, size_t shared_bytes) {
    attribute_.id = cudaLaunchAttributeClusterDimension;
    attribute_.val.clusterDim.x = static_cast<unsigned>(size);
    attribute_.val.clusterDim.y = attribute_.val.clusterDim.z = 1;
    config_.gridDim = dim3(blocks);
    config_.blockDim = dim3(kFusedThreads);
    config_.dynamicSmemBytes = shared_bytes;
    config_.stream = stream;
    config_.attrs = &attribute_;
    config_.numAttrs = 1;
  }
  ClusterConfig(const ClusterConfig&) = delete;
  ClusterConfig& operator=(const ClusterConfig&) = delete;
  const cudaLaunchConfig_t* get() const { return &config_; }

 private:
  cudaLaunchConfig_t config_ = {};
  cudaLaunchAttribute attribute_ = {};
};

}  // namespace

cudaError_t AllowFusedClusters(const StepModel& model, int rows, size_t shared_limit) {
  return AllowFused<true>(model, rows, shared_limit);
}

cudaError_t CountFusedClusters(const StepModel& model, int size, size_t shared_limit,
                               int* clusters) {
  const cudaError_t error = AllowFused<true>(model, kFusedMaxRows, shared_limit);
  if (error != cudaSuccess) return error;
  return WithFusedKernel<true>(model, kFusedMaxRows, [&](auto kernel) {
    const ClusterConfig config(nullptr, static_cast<unsigned>(size), size, shared_limit);
    return cudaOccupancyMaxActiveClusters(clusters, kernel, config.get());
  });
}

cudaError_t StartFusedClusters(const CudaLaunch& launch, const FusedArgs& args) {
  const int rows = args.plan.rows * args.cluster;
  const int blocks = (args.rows + rows - 1) / rows * args.cluster;
  return WithFusedKernel<true>(args.model, args.plan.rows, [&](auto kernel) {
    const ClusterConfig config(launch.stream, static_cast<unsigned>(blocks), args.cluster,
                               args.plan.shared_bytes);
    return cudaLaunchKernelEx(config.get(), kernel, args);
  });
}

}  // namespace rivulet::kernels
