// SPDX-License-Identifier: Apache-2.0
//   y = out * f(in * x + bias) * times        w = exp(max(floor, -scale f(z)))
#include "kernels/cuda/blocks/element_rows_cuda.h"
#include "kernels/cuda/common/element_math_cuda.h"

namespace rivulet::kernels {
namespace {

constexpr int kThreads = 128, kMostAcross = 65535;  // of a grid

// This thread's element of a row. The grid has a column of blocks for each row: otherwise every
// element would need a division of 64-bit numbers, which takes longer than its activation.
struct Element {
  size_t row;
  int column;
  __device__ Element()
      : row(blockIdx.x), column(static_cast<int>(blockIdx.y * kThreads + threadIdx.x)) {}
  __device__ size_t In(size_t stride) const { return row * stride + static_cast<size_t>(column); }
};

__global__ void __launch_bounds__(kThreads)
    ActivateRows(ActivationArgs p, CudaHalfRows half, CudaScales scales) {
  WaitForPredecessor();
  const Element at;
  if (at.column >= p.n) return;
  float x = p.x[at.In(p.x_stride)] * scales.in;
  if (p.bias != nullptr) x += p.bias[at.column];
  x = ActivationOf(p.kind, x);
  if (p.times != nullptr) x *= p.times[at.In(p.times_stride)];
  x *= scales.out;
  if (half.data == nullptr) {
    p.y[at.In(p.y_stride)] = x;
  } else {
    half.data[at.In(half.stride)] = RoundF16(x);
  }
}

__global__ void __launch_bounds__(kThreads) DecayRows(DecayArgs p) {
  WaitForPredecessor();
  const Element at;
  if (at.column >= p.n) return;
  float z = p.x[at.In(p.x_stride)];
  if (p.bias != nullptr) z += p.bias[at.column];
  p.y[at.In(p.y_stride)] = DecayOf(p.kind, p.negate ? -z : z, p.scale[at.column], p.floor);
}

template <class Args, class... More>
cudaError_t Start(const CudaLaunch& launch, void (*kernel)(Args, More...), const Args& args,
                  const More&... more) {
  if (args.rows < 0 || args.n < 1 || args.x == nullptr || args.y == nullptr) {
    return cudaErrorInvalidValue;
  }
  const auto n = static_cast<size_t>(args.n);
  if (args.rows > 1 && (args.x_stride < n || args.y_stride < n)) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const int64_t across = (int64_t{args.n} + kThreads - 1) / kThreads;
  if (across > kMostAcross) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(args.rows), static_cast<unsigned>(across));
  return LaunchGrid(launch, kernel, grid, kThreads, 0, args, more...);
}

}  // namespace

cudaError_t PrepareElementRowsCuda() { return PrepareKernels(ActivateRows, DecayRows); }

cudaError_t ActivationCuda(const CudaLaunch& launch, const ActivationArgs& args,
                           const CudaHalfRows& half, const CudaScales& scales) {
  if (half.data != nullptr && half.stride < static_cast<size_t>(args.n)) {
    return cudaErrorInvalidValue;
  }
  return Start(launch, ActivateRows, args, half, scales);
}

cudaError_t DecayCuda(const CudaLaunch& launch, const DecayArgs& args) {
  return args.scale == nullptr ? cudaErrorInvalidValue : Start(launch, DecayRows, args);
}

}  // namespace rivulet::kernels
