// SPDX-License-Identifier: Apache-2.0
// One value, or one row, of an embedding (embed_cuda.h), for any kernel. Included by .cu files
// only.
#pragma once

#include "kernels/cuda/common/device_cuda.h"
#include "kernels/cuda/rows/embed_cuda.h"

namespace rivulet::kernels {

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

// One warp writes the embedding of a row, `ld` values of x. Not inlined, because of its registers.
__device__ __noinline__ inline void EmbedRow(const CudaEmbedArgs& args, int32_t token, int64_t at,
                                             float* x, int ld) {
  for (int i = LaneIndex(); i < ld; i += kWarpLanes) x[i] = EmbeddingValue(args, token, at, i);
}

}  // namespace rivulet::kernels
