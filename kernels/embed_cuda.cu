// SPDX-License-Identifier: Apache-2.0
//   y = e(token) + p(position),  or  [e(token) ; p(position)]
#include <cmath>

#include "kernels/device_cuda.h"
#include "kernels/embed_cuda.h"

namespace rivulet::kernels {
namespace {

constexpr int kThreads = 128;

__device__ float PositionValue(const CudaEmbedArgs& args, int64_t p, int column) {
  if (p < args.position_rows) {
    return args.positions[static_cast<size_t>(p) * static_cast<size_t>(args.columns) +
                          static_cast<size_t>(column)];
  }
  // x = angle / pi: sinpi reduces it exactly.
  const double x = static_cast<double>(p) * args.frequencies[column];
  return static_cast<float>(column % 2 == 0 ? sinpi(x) : cospi(x));
}

__global__ void __launch_bounds__(kThreads) Embed(CudaEmbedArgs args) {
  WaitForPredecessor();
  const int row = static_cast<int>(blockIdx.x);
  const float* e = args.table + At(args.tokens[row], args.columns);
  const int64_t p = args.has_positions ? args.at[row] : 0;
  const bool add = args.has_positions && !args.concat;
  const int width = args.has_positions && args.concat ? 2 * args.columns : args.columns;
  for (int i = static_cast<int>(threadIdx.x); i < args.ld; i += kThreads) {
    float y = 0;
    if (i < args.columns) {
      y = e[i];
      if (add) y += PositionValue(args, p, i);
    } else if (i < width) {
      y = PositionValue(args, p, i - args.columns);
    }
    args.out[At(row, args.ld, i)] = y;
  }
}

}  // namespace

cudaError_t EmbedCuda(const CudaLaunch& launch, const CudaEmbedArgs& args) {
  const int width = args.columns * (args.has_positions && args.concat ? 2 : 1);
  if (args.rows < 0 || args.columns < 1 || args.ld < width || args.table == nullptr) {
    return cudaErrorInvalidValue;
  }
  if (args.has_positions &&
      (args.at == nullptr || (args.position_rows > 0 && args.positions == nullptr))) {
    return cudaErrorInvalidValue;
  }
  if (args.rows == 0) return cudaSuccess;
  const KernelConfig config(launch, dim3(static_cast<unsigned>(args.rows)), kThreads, 0);
  return cudaLaunchKernelEx(config.get(), Embed, args);
}

void CudaFrequencies(int columns, double* out) {
  constexpr double kPi = 3.14159265358979323846;
  for (int c = 0; c < columns; ++c) {
    out[c] =
        std::pow(10000.0, -static_cast<double>(c - c % 2) / static_cast<double>(columns)) / kPi;
  }
}

}  // namespace rivulet::kernels
