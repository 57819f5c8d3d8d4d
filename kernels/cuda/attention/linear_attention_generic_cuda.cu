// SPDX-License-Identifier: Apache-2.0
//   S <- g S + a k v^T     z <- g z + a k     y = q^T S / n(q . z)       k = phi(key), q =
//   phi(query)
//
// Any shape. A block takes a head of a segment. It loads the columns of S in parts that fit into
// shared memory and takes all tokens for each part: z starts over with every part. Warp w takes
// features w,
// w + 4, ... of every column; the four sums of a column are added in the order of the warps.
#include <cstdint>

#include "kernels/cuda/attention/feature_map_cuda.h"
#include "kernels/cuda/attention/linear_attention_generic_cuda.h"
#include "kernels/cuda/attention/linear_attention_shape_cuda.h"

namespace rivulet::kernels {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarpLanes;
constexpr int kMaxShared = 96 << 10;  // every GPU from compute capability 8.0 on has this

// Floats of shared memory for any number of columns: z, the first z, phi of q and k, x of q and k,
// the warps' shares of q . z. And per column: S, the value, the warps' sums.
int FixedFloats(const StateLayout& layout, const FeatureMapArgs& map) {
  return 4 * layout.features + 2 * map.key_dim + kWarps;
}
int FloatsAColumn(const StateLayout& layout) { return layout.features + 1 + kWarps; }

struct Parts {
  float *z, *z_first, *phi, *x, *dot, *s, *value, *sums;
  __device__ Parts(float* shared, int features, int key_dim, int columns) {
    z = shared;
    z_first = z + features;
    phi = z_first + features;
    x = phi + 2 * features;
    dot = x + 2 * key_dim;
    s = dot + kWarps;
    value = s + static_cast<size_t>(features) * static_cast<size_t>(columns);
    sums = value + columns;
  }
};

// One token for `columns` columns of S from `column` on, which the caller loaded. A buffer is
// written again only after a barrier that follows its last read: x, phi and value of the next token
// after the last barrier here; its sums and dot after the first barrier of the next call. S and z
// are first read after that barrier, too (z by the threads that loaded it).
__device__ void Token(const CudaAttentionArgs& p, const Parts& part, int row, int head, int column,
                      int columns) {
  const int thread = static_cast<int>(threadIdx.x), warp = WarpIndex();
  const int features = p.layout.features, key_dim = p.map.key_dim, heads = p.layout.heads;
  const int value_dim = p.layout.value_dim;
  const float* in = p.qkv + At(row, p.ld_qkv);
  for (int i = thread; i < 2 * key_dim; i += kThreads) {
    const float v = in[(i / key_dim * heads + head) * key_dim + i % key_dim];
    if (p.map.kind == FeatureMapKind::kElu) {
      part.phi[i] = EluFeature(v);  // features = key_dim
    } else {
      part.x[i] = v;
    }
  }
  for (int i = thread; i < columns; i += kThreads) {
    part.value[i] = in[2 * heads * key_dim + head * value_dim + column + i];
  }
  __syncthreads();
  if (p.map.kind != FeatureMapKind::kElu) {
    const float* omega = p.map.omega + static_cast<size_t>(head) * p.omega_per_head;
    for (int i = thread; i < 2 * p.map.columns; i += kThreads) {
      const int which = i / p.map.columns;
      ProjectedFeature(p.map, omega, part.x + which * key_dim, i % p.map.columns,
                       part.phi + which * features);
    }
    __syncthreads();
  }
  const GateFactors gate =
      p.gated ? GateOf(in[heads * (2 * key_dim + value_dim) + head]) : GateFactors{1, 1};
  const float* q = part.phi;
  const float* k = part.phi + features;
  float dot = 0;
  for (int f = thread; f < features; f += kThreads) {
    part.z[f] = fmaf(gate.g, part.z[f], gate.a * k[f]);
    dot = fmaf(q[f], part.z[f], dot);
  }
  dot = WarpSum(dot);
  if (LaneIndex() == 0) part.dot[warp] = dot;
  for (int c = LaneIndex(); c < columns; c += kWarpLanes) {
    float sum = 0;
    for (int f = warp; f < features; f += kWarps) {
      float& s = part.s[f * columns + c];
      s = fmaf(gate.a * k[f], part.value[c], gate.g * s);
      sum = fmaf(q[f], s, sum);
    }
    part.sums[warp * columns + c] = sum;
  }
  __syncthreads();
  dot = (part.dot[0] + part.dot[1]) + (part.dot[2] + part.dot[3]);
  const float inverse = InverseOf(p, dot);
  for (int c = thread; c < columns; c += kThreads) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += part.sums[w * columns + c];
    const size_t at = At(row, p.ld_out, head * value_dim + column + c);
    if (p.out_half != nullptr) {
      p.out_half[at] = RoundF16(sum * inverse);
    } else {
      p.out[at] = sum * inverse;
    }
  }
}

__global__ void __launch_bounds__(kThreads, 6)
    GenericAttention(CudaAttentionArgs p, int columns_at_once) {
  WaitForPredecessor();
  const CudaSegment segment = p.segments[static_cast<int>(blockIdx.x) / p.layout.heads];
  const int head = static_cast<int>(blockIdx.x) % p.layout.heads;
  if (segment.num_rows == 0) return;  // the whole block
  const int thread = static_cast<int>(threadIdx.x);
  const int features = p.layout.features, value_dim = p.layout.value_dim;
  const Parts part(static_cast<float*>(SharedMemory()), features, p.map.key_dim, columns_at_once);
  float* slot = p.states + static_cast<size_t>(segment.slot) * p.layout.floats_per_slot();
  float* s = slot + p.layout.s_offset(p.layer, head);
  float* z = slot + p.layout.z_offset(p.layer, head);
  for (int f = thread; f < features; f += kThreads) part.z_first[f] = z[f];
  for (int column = 0; column < value_dim; column += columns_at_once) {
    const int left = value_dim - column, columns = left < columns_at_once ? left : columns_at_once;
    for (int f = thread; f < features; f += kThreads) part.z[f] = part.z_first[f];
    for (int i = thread; i < features * columns; i += kThreads) {
      part.s[i] = s[At(i / columns, value_dim, column + i % columns)];
    }
    for (int t = 0; t < segment.num_rows; ++t) {
      Token(p, part, segment.first_row + t, head, column, columns);
    }
    __syncthreads();  // S is final
    for (int i = thread; i < features * columns; i += kThreads) {
      s[At(i / columns, value_dim, column + i % columns)] = part.s[i];
    }
  }
  for (int f = thread; f < features; f += kThreads) z[f] = part.z[f];
}

}  // namespace

int GenericAttentionColumns(const StateLayout& layout, const FeatureMapArgs& map) {
  const int64_t floats = kMaxShared / int64_t{sizeof(float)};
  const int64_t fixed = 4 * int64_t{layout.features} + 2 * int64_t{map.key_dim} + kWarps;
  const int64_t fit = (floats - fixed) / (int64_t{layout.features} + 1 + kWarps);
  if (fit < 1) return 0;
  return fit < layout.value_dim ? static_cast<int>(fit) : layout.value_dim;
}

cudaError_t PrepareGenericAttention() { return PrepareLargeKernel(GenericAttention, kMaxShared); }

cudaError_t StartGenericAttention(const CudaLaunch& launch, const CudaAttentionArgs& args) {
  const int64_t blocks = int64_t{args.num_segments} * args.layout.heads;
  const int columns = GenericAttentionColumns(args.layout, args.map);
  const int floats = FixedFloats(args.layout, args.map) + FloatsAColumn(args.layout) * columns;
  return LaunchBlocks(launch, GenericAttention, blocks, kThreads,
                      static_cast<size_t>(floats) * sizeof(float), args, columns);
}

}  // namespace rivulet::kernels
