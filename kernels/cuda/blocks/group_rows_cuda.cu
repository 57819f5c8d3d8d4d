// SPDX-License-Identifier: Apache-2.0
//   y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * weight + bias,  mean = 0 for RMS norms
#include "kernels/cuda/blocks/group_rows_cuda.h"
#include "kernels/cuda/blocks/group_statistics_cuda.h"
#include "kernels/cuda/common/element_math_cuda.h"

namespace rivulet::kernels {
namespace {

// Groups of up to kMostOfWarp values have a warp each, longer ones a block each.
constexpr int kThreads = 128, kGroupsPerBlock = kThreads / kWarpLanes, kMostOfWarp = 256;
constexpr int kLongThreads = 256;
constexpr size_t kMostShared = size_t{48} << 10;  // a block's default limit

struct NormGroupsArgs {
  RmsNormArgs norm;
  const float* bias;  // [groups, size]; null: 0
  CudaGate gate;
  const int32_t* gather;
  CudaHalfRows half;
};

// The beginnings of a group's values and of their gates, weights and bias: [size], or null.
struct Group {
  const float *x, *gate;
  float* y;
  uint16_t* half;  // in place of y
  int index;       // of the row's groups
  __device__ Group(const NormGroupsArgs& p, int item) {
    const int row = item / p.norm.groups;
    index = item % p.norm.groups;
    const size_t column = Column(p);
    const auto at = [column](int of, size_t stride) {
      return static_cast<size_t>(of) * stride + column;
    };
    x = p.norm.x + at(p.gather == nullptr ? row : p.gather[row], p.norm.x_stride);
    y = p.norm.y + at(row, p.norm.y_stride);
    gate = p.gate.data == nullptr ? nullptr : p.gate.data + at(row, p.gate.stride);
    half = p.half.data == nullptr ? nullptr : p.half.data + at(row, p.half.stride);
  }
  __device__ size_t Column(const NormGroupsArgs& p) const {
    return static_cast<size_t>(index) * static_cast<size_t>(p.norm.size);
  }
  __device__ const float* Weight(const NormGroupsArgs& p) const {
    return p.norm.weight == nullptr
               ? nullptr
               : p.norm.weight + static_cast<size_t>(index) * p.norm.weight_stride;
  }
  __device__ const float* Bias(const NormGroupsArgs& p) const {
    return p.bias == nullptr ? nullptr : p.bias + Column(p);
  }
};

template <bool kCentred>
__global__ void __launch_bounds__(kThreads) NormGroups(NormGroupsArgs p) {
  WaitForPredecessor();
  const int item = static_cast<int>(blockIdx.x) * kGroupsPerBlock + WarpIndex(), n = p.norm.size;
  if (item / p.norm.groups >= p.norm.rows) return;  // whole warps; no block barrier follows
  const Group g(p, item);
  const float* x = g.x;
  if (!kCentred && g.gate != nullptr && p.gate.first) {
    // Only the lane that writes a value reads it again. (Unrolled, the kernel would have a stack.)
#pragma unroll 1
    for (int i = LaneIndex(); i < n; i += kWarpLanes) {
      g.y[i] = x[i] * ActivationOf(p.gate.kind, g.gate[i]);
    }
    x = g.y;
  }
  const RowStatistics s = GroupStatistics<kCentred>(x, n, p.norm.eps);
  const float *const weight = g.Weight(p), *const bias = kCentred ? g.Bias(p) : nullptr;
  const bool gated = !kCentred && g.gate != nullptr && !p.gate.first;
  for (int i = LaneIndex(); i < n; i += kWarpLanes) {
    const float v = NormOf<kCentred>(x[i], s, weight == nullptr ? 1.0f : weight[i],
                                     bias == nullptr ? 0.0f : bias[i]);
    const float y = gated ? v * ActivationOf(p.gate.kind, g.gate[i]) : v;
    if (g.half == nullptr) {
      g.y[i] = y;
    } else {
      g.half[i] = RoundF16(y);
    }
  }
}

__device__ __forceinline__ float4 QuadOf(const float* values, int i, float otherwise) {
  return values == nullptr ? make_float4(otherwise, otherwise, otherwise, otherwise)
                           : reinterpret_cast<const float4*>(values)[i];
}
__device__ __forceinline__ float4 Times(float4 a, float4 b) {
  return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}

// All threads load, activate and write; one warp adds up, in the order of NormGroups.
template <bool kCentred>
__global__ void __launch_bounds__(kLongThreads) NormLongGroups(NormGroupsArgs p) {
  WaitForPredecessor();
  const Group g(p, static_cast<int>(blockIdx.x));
  const int quads = p.norm.size / 4;
  const bool gated = !kCentred && g.gate != nullptr;
  // The values, then their factors where the gate comes behind the norm.
  auto* const statistics = static_cast<RowStatistics*>(SharedMemory());
  float4* const held = static_cast<float4*>(SharedMemory()) + 1;
#pragma unroll 2  // activations are long
  for (int i = static_cast<int>(threadIdx.x); i < quads; i += kLongThreads) {
    float4 v = QuadOf(g.x, i, 0);
    if (gated) {
      const float4 z = QuadOf(g.gate, i, 0);
      const Activation kind = p.gate.kind;
      const float4 f = make_float4(ActivationOf(kind, z.x), ActivationOf(kind, z.y),
                                   ActivationOf(kind, z.z), ActivationOf(kind, z.w));
      if (p.gate.first) {
        v = Times(v, f);
      } else {
        held[quads + i] = f;  // read below by this thread alone
      }
    }
    held[i] = v;
  }
  __syncthreads();
  if (WarpIndex() == 0) {
    const RowStatistics s =
        GroupStatistics<kCentred>(reinterpret_cast<const float*>(held), p.norm.size, p.norm.eps);
    if (LaneIndex() == 0) *statistics = s;
  }
  __syncthreads();
  const RowStatistics s = *statistics;
  const float *const weight = g.Weight(p), *const bias = kCentred ? g.Bias(p) : nullptr;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < quads; i += kLongThreads) {
    const float4 x = held[i], w = QuadOf(weight, i, 1), b = QuadOf(bias, i, 0);
    float4 y = make_float4(NormOf<kCentred>(x.x, s, w.x, b.x), NormOf<kCentred>(x.y, s, w.y, b.y),
                           NormOf<kCentred>(x.z, s, w.z, b.z), NormOf<kCentred>(x.w, s, w.w, b.w));
    if (gated && !p.gate.first) y = Times(y, held[quads + i]);
    if (g.half == nullptr) {
      reinterpret_cast<float4*>(g.y)[i] = y;
    } else {
      reinterpret_cast<uint2*>(g.half)[i] = make_uint2(PackHalves(y.x, y.y), PackHalves(y.z, y.w));
    }
  }
}

size_t SharedOf(const NormGroupsArgs& args) {
  const bool factors = args.gate.data != nullptr && !args.gate.first;
  return sizeof(float4) + static_cast<size_t>(args.norm.size) * sizeof(float) * (factors ? 2 : 1);
}

// Whether groups consist of whole float4 in all arrays.
bool InQuads(const NormGroupsArgs& args) {
  const RmsNormArgs& norm = args.norm;
  bool quads = norm.size % 4 == 0;
  for (const size_t stride :
       {norm.x_stride, norm.y_stride, norm.weight_stride, args.gate.stride, args.half.stride}) {
    quads = quads && stride % 4 == 0;
  }
  for (const float* p :
       {norm.x, static_cast<const float*>(norm.y), norm.weight, args.bias, args.gate.data}) {
    quads = quads && reinterpret_cast<uintptr_t>(p) % sizeof(float4) == 0;
  }
  return quads && reinterpret_cast<uintptr_t>(args.half.data) % sizeof(uint2) == 0;
}

template <bool kCentred>
cudaError_t Start(const CudaLaunch& launch, const NormGroupsArgs& args) {
  const RmsNormArgs& norm = args.norm;
  if (norm.rows < 0 || norm.groups < 1 || norm.size < 1) return cudaErrorInvalidValue;
  const size_t used = static_cast<size_t>(norm.groups) * static_cast<size_t>(norm.size);
  if (norm.x == nullptr || norm.y == nullptr || norm.x_stride < used || norm.y_stride < used ||
      (norm.x == norm.y && (norm.x_stride != norm.y_stride || args.gather != nullptr)) ||
      (args.gate.data != nullptr && args.gate.stride < used) ||
      (args.half.data != nullptr && args.half.stride < used)) {
    return cudaErrorInvalidValue;
  }
  const int64_t items = int64_t{norm.rows} * norm.groups;
  if (items > INT32_MAX - kGroupsPerBlock) return cudaErrorInvalidValue;
  if (norm.size > kMostOfWarp && InQuads(args) && SharedOf(args) <= kMostShared) {
    return LaunchBlocks(launch, NormLongGroups<kCentred>, items, kLongThreads, SharedOf(args),
                        args);
  }
  const int64_t blocks = (items + kGroupsPerBlock - 1) / kGroupsPerBlock;
  return LaunchBlocks(launch, NormGroups<kCentred>, blocks, kThreads, 0, args);
}

}  // namespace

cudaError_t PrepareGroupRowsCuda() {
  return PrepareKernels(NormGroups<false>, NormGroups<true>, NormLongGroups<false>,
                        NormLongGroups<true>);
}

cudaError_t RmsNormCuda(const CudaLaunch& launch, const RmsNormArgs& args, const CudaGate& gate,
                        const int32_t* gather, const CudaHalfRows& half) {
  return Start<false>(launch, {args, nullptr, gate, gather, half});
}

cudaError_t GroupNormCuda(const CudaLaunch& launch, const GroupNormArgs& args,
                          const int32_t* gather, const CudaHalfRows& half) {
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
  return Start<true>(launch, {norm, args.bias, {}, gather, half});
}

}  // namespace rivulet::kernels
