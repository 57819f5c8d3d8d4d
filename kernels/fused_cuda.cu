// SPDX-License-Identifier: Apache-2.0
// Steps of many rows in one launch.
#include "kernels/fused_cuda.h"
#include "kernels/fused_phases_cuda.h"

namespace rivulet::kernels {
namespace {

template <class Order, int kHigh>
__global__ void __launch_bounds__(kFusedThreads, 1) Fused(const __grid_constant__ FusedArgs p) {
  FusedBlock<Order, kHigh> block(p);
  if (!block.Begin()) return;
  for (int step = 0; step < p.steps && (step == 0 || block.Next()); ++step) {
    block.Embed();
    for (int l = 0; l < p.model.attention.layout.layers; ++l) block.Layer(l);
    block.Draw();
  }
  block.End();
}

// Calls f(kernel) with the one for `model` and `plan`.
template <class F>
cudaError_t WithKernel(const StepModel& model, const FusedPlan& plan, const F& f) {
  return ForAttentionShape(
      model.attention,
      [&](auto order) {
        using Order = decltype(order);
        return plan.rows > 16 ? f(Fused<Order, 2>) : f(Fused<Order, 1>);
      },
      [] { return cudaErrorInvalidValue; });
}

}  // namespace

cudaError_t PrepareFusedCuda(const StepModel& model, const FusedPlan& plan, size_t shared_limit) {
  return WithKernel(model, plan, [&](auto kernel) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(shared_limit));
  });
}

cudaError_t FusedCuda(const CudaLaunch& launch, const FusedArgs& args) {
  if (args.rows < 1 || args.steps < 1 || args.plan.rows < 1 || args.plan.rows > kFusedMaxRows ||
      args.model.type != WeightType::kF16 || args.sample.num_outputs != args.model.head.n) {
    return cudaErrorInvalidValue;
  }
  CudaLaunch alone = launch;
  alone.overlap = false;
  return WithKernel(args.model, args.plan, [&](auto kernel) {
    const KernelConfig config(alone, dim3(static_cast<unsigned>(args.plan.blocks(args.rows))),
                              kFusedThreads, args.plan.shared_bytes);
    return cudaLaunchKernelEx(config.get(), kernel, args);
  });
}

}  // namespace rivulet::kernels
