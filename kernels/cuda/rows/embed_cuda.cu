// SPDX-License-Identifier: Apache-2.0
//   y = e(token) + p(position),  or  [e(token) ; p(position)]
#include <cmath>

#include "kernels/cuda/common/device_cuda.h"
#include "kernels/cuda/rows/embed_cuda.h"

namespace rivulet::kernels {
namespace {

constexpr int kThreads = 128;

__device__ inline float PositionValue(const CudaEmbedArgs& args, int64_t p, int column) {
  if (p < args.position_rows) {
    return args.positions[static_cast<size_t>(p) * static_cast<size_t>(args.columns) +
                          static_cast<size_t>(column)];
  }
  // x = angle / pi: sinpi reduces it exactly.
  const double x = static_cast<double>(p) * args.frequencies[column];
  return static_cast<float>(column % 2 == 0 ? sinpi(x) : cospi(x));
}

__device__ inline float TableValue(const CudaEmbedArgs& args, size_t i) {
  if (args.type == WeightType::kF32) return static_cast<const float*>(args.table)[i];
  const uint16_t bits = static_cast<const uint16_t*>(args.table)[i];
  return args.type == WeightType::kF16 ? WidenF16(bits) : __uint_as_float(uint32_t{bits} << 16);
}

// Column `i` of the embedding of `token` at position `p`; 0 behind its last column.
__device__ inline float EmbeddingValue(const CudaEmbedArgs& args, int32_t token, int64_t p, int i) {
  const bool concat = args.has_positions && args.concat;
  if (i < args.columns) {
    const float y = TableValue(args, At(token, args.columns, i));
    return args.has_positions && !concat ? y + PositionValue(args, p, i) : y;
  }
  return concat && i < 2 * args.columns ? PositionValue(args, p, i - args.columns) : 0.0f;
}

__global__ void __launch_bounds__(kThreads) Embed(CudaEmbedArgs args) {
  WaitForPredecessor();
  const int row = static_cast<int>(blockIdx.x);
  const int64_t p = args.has_positions ? args.at[row] : 0;
  for (int i = static_cast<int>(threadIdx.x); i < args.width; i += kThreads) {
    const float y = EmbeddingValue(args, args.tokens[row], p, i);
    args.out[At(row, args.ld, i)] = y;
    if (args.half != nullptr) {
      args.half[At(row, args.ld, i)] = RoundF16(y);
    }
  }
}

}  // namespace

cudaError_t PrepareEmbedCuda() { return PrepareKernels(Embed); }

cudaError_t EmbedCuda(const CudaLaunch& launch, const CudaEmbedArgs& args) {
  const int width = args.columns * (args.has_positions && args.concat ? 2 : 1);
  if (args.rows < 0 || args.columns < 1 || args.ld < width || args.table == nullptr) {
    return cudaErrorInvalidValue;
  }
  if (args.has_positions &&
      (args.at == nullptr || (args.position_rows > 0 && args.positions == nullptr))) {
    return cudaErrorInvalidValue;
  }
  if (args.width != 0 && (args.width < width || args.width > args.ld)) return cudaErrorInvalidValue;
  CudaEmbedArgs whole = args;
  if (whole.width == 0) whole.width = args.ld;
  return LaunchBlocks(launch, Embed, args.rows, kThreads, 0, whole);
}

void CudaFrequencies(int columns, double* out) {
  constexpr double kPi = 3.14159265358979323846;
  for (int c = 0; c < columns; ++c) {
    out[c] =
        std::pow(10000.0, -static_cast<double>(c - c % 2) / static_cast<double>(columns)) / kPi;
  }
}

}  // namespace rivulet::kernels
