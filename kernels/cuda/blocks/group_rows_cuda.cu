// SPDX-License-Identifier: Apache-2.0
//   y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * weight + bias,  mean = 0 for RMS norms
#include "kernels/cuda/blocks/element_math_cuda.h"
#include "kernels/cuda/blocks/group_rows_cuda.h"

namespace rivulet::kernels {
namespace {

constexpr int kThreads = 128, kGroupsPerBlock = kThreads / kWarpLanes;

struct NormGroupsArgs {
  RmsNormArgs norm;
  const float* bias;  // [groups, size]; null: 0
  CudaGate gate;
  const int32_t* gather;
};

template <bool kCentred>
__global__ void __launch_bounds__(kThreads) NormGroups(NormGroupsArgs p) {
  WaitForPredecessor();
  const int item = static_cast<int>(blockIdx.x) * kGroupsPerBlock + WarpIndex();
  const int row = item / p.norm.groups, group = item % p.norm.groups, n = p.norm.size;
  if (row >= p.norm.rows) return;  // whole warps; no block barrier follows
  const int from = p.gather == nullptr ? row : p.gather[row];
  const size_t column = static_cast<size_t>(group) * static_cast<size_t>(n);
  const float* x = p.norm.x + static_cast<size_t>(from) * p.norm.x_stride + column;
  float* const y = p.norm.y + static_cast<size_t>(row) * p.norm.y_stride + column;
  const float* const gate = p.gate.data == nullptr
                                ? nullptr
                                : p.gate.data + static_cast<size_t>(row) * p.gate.stride + column;
  if (gate != nullptr && p.gate.first) {
    // What a lane writes it alone reads again.
    for (int i = LaneIndex(); i < n; i += kWarpLanes) {
      y[i] = x[i] * ActivationOf(p.gate.kind, gate[i]);
    }
    x = y;
  }
  float mean = 0, squares = 0;
  if constexpr (kCentred) {
    for (int i = LaneIndex(); i < n; i += kWarpLanes) mean += x[i];
    mean = WarpSum(mean) / static_cast<float>(n);
  }
  for (int i = LaneIndex(); i < n; i += kWarpLanes) {
    const float v = kCentred ? x[i] - mean : x[i];
    squares = fmaf(v, v, squares);
  }
  const float scale = 1.0f / sqrtf(WarpSum(squares) / static_cast<float>(n) + p.norm.eps);
  const float* const weight =
      p.norm.weight == nullptr ? nullptr
                               : p.norm.weight + static_cast<size_t>(group) * p.norm.weight_stride;
  const bool gated = gate != nullptr && !p.gate.first;
  for (int i = LaneIndex(); i < n; i += kWarpLanes) {
    float v = (kCentred ? x[i] - mean : x[i]) * scale;
    if (kCentred) {
      v = fmaf(v, weight == nullptr ? 1.0f : weight[i],
               p.bias == nullptr ? 0.0f : p.bias[column + static_cast<size_t>(i)]);
    } else if (weight != nullptr) {
      v *= weight[i];
    }
    y[i] = gated ? v * ActivationOf(p.gate.kind, gate[i]) : v;
  }
}

template <bool kCentred>
cudaError_t Start(const CudaLaunch& launch, const NormGroupsArgs& args) {
  const RmsNormArgs& norm = args.norm;
  if (norm.rows < 0 || norm.groups < 1 || norm.size < 1) return cudaErrorInvalidValue;
  const size_t used = static_cast<size_t>(norm.groups) * static_cast<size_t>(norm.size);
  if (norm.x == nullptr || norm.y == nullptr || norm.x_stride < used || norm.y_stride < used ||
      (norm.x == norm.y && (norm.x_stride != norm.y_stride || args.gather != nullptr)) ||
      (args.gate.data != nullptr && args.gate.stride < used)) {
    return cudaErrorInvalidValue;
  }
  const int64_t items = int64_t{norm.rows} * norm.groups;
  if (items > INT32_MAX - kGroupsPerBlock) return cudaErrorInvalidValue;
  const int64_t blocks = (items + kGroupsPerBlock - 1) / kGroupsPerBlock;
  return LaunchBlocks(launch, NormGroups<kCentred>, blocks, kThreads, 0, args);
}

}  // namespace

cudaError_t PrepareGroupRowsCuda() { return PrepareKernels(NormGroups<false>, NormGroups<true>); }

cudaError_t RmsNormCuda(const CudaLaunch& launch, const RmsNormArgs& args, const CudaGate& gate,
                        const int32_t* gather) {
  return Start<false>(launch, {args, nullptr, gate, gather});
}

cudaError_t GroupNormCuda(const CudaLaunch& launch, const GroupNormArgs& args,
                          const int32_t* gather) {
  RmsNormArgs norm;
  norm.x = args.x;
  norm.y = args.y;
  norm.weight = args.weight;
  norm.x_stride = args.x_stride;
  norm.y_stride = args.y_stride;
  norm.weight_stride = static_cast<size_t>(args.size);
  norm.rows = args.rows;
  norm.groups = args.groups;
  norm.size = args.size;
  norm.eps = args.eps;
  return Start<true>(launch, {norm, args.bias, {}, gather});
}

}  // namespace rivulet::kernels
