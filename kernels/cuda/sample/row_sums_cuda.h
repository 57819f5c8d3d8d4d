// SPDX-License-Identifier: Apache-2.0
// How a block iterates over the values of a row, and computes their sums and their maximum.
// Included by kernels/cuda/sample/ only. The whole block calls every function, unless its comment
// says otherwise.
//
// A thread reads quads: four neighbouring values. Neighbouring threads take neighbouring quads, and
// kAhead quads per thread are in flight at once: into shared memory, so that code is short, or into
// registers where kAhead is 1. Sums run over chunks of the row: a chunk belongs to one warp; a lane
// adds its quads in their order, each as (0 + 1) + (2 + 3); the lanes fold in a butterfly, and the
// chunks in a fixed tree. So the number of threads does not change a sum.
#pragma once

#include "kernels/cuda/common/async_copy_cuda.h"
#include "kernels/cuda/common/device_cuda.h"
#include "kernels/cuda/sample/sample_cuda.h"

namespace rivulet::kernels {

inline constexpr int kMostRowThreads = 512, kMostRowWarps = kMostRowThreads / kWarpLanes;
inline constexpr int kRowChunks = 4 * kWarpLanes;
inline constexpr int kDigitBits = 10, kDigits = 1 << kDigitBits, kDigitGroups = 32;
__device__ __forceinline__ int RowThread() { return static_cast<int>(threadIdx.x); }
__device__ __forceinline__ int RowThreads() { return static_cast<int>(blockDim.x); }
__device__ __forceinline__ int RowWarps() { return RowThreads() / kWarpLanes; }

// The beginning of a block's shared memory, for its row. Quads in flight follow it.
struct alignas(16) RowShared {
  CudaSampler sampler;
  CudaOutputWork work;
  uint32_t low[kDigits], high[kDigits];  // a histogram's sums of 64 bits (threshold_cuda.h)
  double groups[kDigitGroups];           // of its neighbouring bins
  double sums[kRowChunks];
  uint64_t best[kMostRowWarps];  // of the warps
  int32_t chosen;
};
constexpr size_t RowSharedBytes(int ahead, int threads) {
  return sizeof(RowShared) + (ahead > 1 ? sizeof(float4) * ahead * threads : 0);
}
// Call this instead of passing a reference: the compiler would not know in functions that are not
// inlined that a reference is to shared memory.
__device__ __forceinline__ RowShared& OfRow() { return *static_cast<RowShared*>(SharedMemory()); }

struct Quad {
  float v[4];
};
__device__ __forceinline__ Quad LoadQuad(const float* from) {
  const float4 v = *reinterpret_cast<const float4*>(from);
  return {{v.x, v.y, v.z, v.w}};
}
__device__ __forceinline__ void StoreQuad(float* to, const Quad& q) {
  *reinterpret_cast<float4*>(to) = make_float4(q.v[0], q.v[1], q.v[2], q.v[3]);
}
// Replaces the values of ids from `n` on. REQUIRES: first < n.
__device__ __forceinline__ void FillTail(int first, int n, float value, Quad& q) {
  if (first + 4 <= n) return;
#pragma unroll
  for (int i = 1; i < 4; ++i) q.v[i] = first + i < n ? q.v[i] : value;
}

// `count` threads share the ids begin .. end - 1 of a row of `n`, one quad per thread and turn.
// Thread `index` calls use(first id, quad) for its quads in their order, and after(first id of the
// turn) after each turn; all threads have the same number of turns. `begin` is a multiple of 4. Any
// thread may call it.
template <int kAhead, class Use, class After>
__device__ __forceinline__ void ForQuads(const float* row, int n, int begin, int end, int index,
                                         int count, const Use& use, const After& after) {
  static_assert((kAhead & (kAhead - 1)) == 0);
  const int step = 4 * count, limit = end < n ? end : n;
  float* const ring = reinterpret_cast<float*>(&OfRow() + 1) + 4 * RowThread();
  const int ring_step = 4 * RowThreads();
  const auto bring = [&](int at, int slot) {
    if (at < limit) CopyAsync<16>(ring + slot * ring_step, row + at);
    CommitCopies();
  };
#pragma unroll
  for (int s = 0; s + 1 < kAhead; ++s) bring(begin + s * step + 4 * index, s);
  int slot = 0;
#pragma unroll 1
  for (int at = begin; at < end; at += step) {
    const int first = at + 4 * index;
    const float* from = row + first;
    if constexpr (kAhead > 1) {
      bring(first + (kAhead - 1) * step, (slot + kAhead - 1) & (kAhead - 1));
      WaitForCopies<kAhead - 1>();
      from = ring + slot * ring_step;
      slot = (slot + 1) & (kAhead - 1);
    }
    if (first < limit) use(first, LoadQuad(from));
    after(at);
  }
}
// Calls use(first id, quad) for all quads of a row, each in one thread. Any thread may call it.
template <int kAhead, class Use>
__device__ __forceinline__ void ForEachQuad(const float* row, int n, const Use& use) {
  ForQuads<kAhead>(row, n, 0, n, RowThread(), RowThreads(), use, [](int) {});
}

// Chunks of 2^shift ids. A short row has short chunks, so that more than one warp has work.
struct Chunks {
  int n, shift, count;
  __device__ explicit Chunks(int ids) : n(ids), shift(ids <= 2048 ? 7 : 9) {
    while ((n - 1) >> shift >= kRowChunks) ++shift;
    count = ((n - 1) >> shift) + 1;
  }
};

// The sum over the lanes up to this one.
__device__ __forceinline__ double SumOfLanesUpTo(double v) {
#pragma unroll
  for (int lanes = 1; lanes < kWarpLanes; lanes *= 2) {
    const double other = __shfl_up_sync(kAllLanes, v, static_cast<unsigned>(lanes));
    if (LaneIndex() >= lanes) v += other;
  }
  return v;
}
// The sum over the lanes before this one, from SumOfLanesUpTo.
__device__ __forceinline__ double SumOfLanesBefore(double up_to) {
  const double before = __shfl_up_sync(kAllLanes, up_to, 1);
  return LaneIndex() == 0 ? 0.0 : before;
}

// The terms of a quad's values in a sum: of(first, q), and 0 from id `n` on.
template <class Of>
__device__ __forceinline__ Quad TermsOf(int first, int n, const Quad& q, const Of& of) {
  Quad terms = of(first, q);
  FillTail(first, n, 0, terms);
  return terms;
}
__device__ __forceinline__ double SumOf(const Quad& q) {
  return (static_cast<double>(q.v[0]) + static_cast<double>(q.v[1])) +
         (static_cast<double>(q.v[2]) + static_cast<double>(q.v[3]));
}
// The sum of a row's terms; OfRow().sums then holds the running sums up to the end of each chunk.
// Unless null, the terms are written to `terms`, which may be `row`. A warp takes neighbouring
// chunks.
template <int kAhead, class Of>
__device__ __forceinline__ double SumRow(const float* row, int n, const Of& of, float* terms) {
  const Chunks chunks(n);
  const int warp_chunks = (chunks.count + RowWarps() - 1) / RowWarps();
  int c = WarpIndex() * warp_chunks;
  const int end = c + warp_chunks < chunks.count ? c + warp_chunks : chunks.count;
  double sum = 0;
  double* const sums = OfRow().sums;
  __syncthreads();  // all threads have read the last sums, and what `terms` replaces
  ForQuads<kAhead>(
      row, n, c << chunks.shift, end << chunks.shift, LaneIndex(), kWarpLanes,
      [&](int first, const Quad& q) {
        const Quad made = TermsOf(first, n, q, of);
        if (terms != nullptr) StoreQuad(terms + first, made);
        sum += SumOf(made);
      },
      [&](int at) {
        if (at + 4 * kWarpLanes < (c + 1) << chunks.shift) return;
        sum = WarpSum(sum);
        if (LaneIndex() == 0) sums[c] = sum;
        sum = 0;
        ++c;
      });
  __syncthreads();
  if (WarpIndex() == 0) {  // four chunks a lane
    const int first = 4 * LaneIndex();
    double up_to[4], all = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) up_to[i] = all += first + i < chunks.count ? sums[first + i] : 0.0;
    const double before = SumOfLanesBefore(SumOfLanesUpTo(all));
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[first + i] = before + up_to[i];
  }
  __syncthreads();
  return sums[chunks.count - 1];
}

// The first id of chunk c at which the running sum, `sum` before the chunk, reaches `target`. If it
// stays below, because another order of additions rounds differently: the last id with a term above
// 0, or -1. One warp calls it.
template <class Of>
__device__ __forceinline__ int32_t FindInChunk(const float* row, const Chunks& chunks, int c,
                                               const Of& of, double sum, double target) {
  constexpr int kStep = 4 * kWarpLanes;
  const auto load = [&](int first) { return first < chunks.n ? LoadQuad(row + first) : Quad{}; };
  int32_t last = -1;
  int first = (c << chunks.shift) + 4 * LaneIndex();
  Quad next = load(first);
#pragma unroll 1
  for (int i = 0; i < 1 << chunks.shift; i += kStep, first += kStep) {
    Quad terms = {};
    if (first < chunks.n) terms = TermsOf(first, chunks.n, next, of);
    next = load(first + kStep);  // at the end from the next chunk: not used
    const double mine = SumOf(terms), up_to = SumOfLanesUpTo(mine);
    double running = sum + SumOfLanesBefore(up_to);
    const unsigned reach = __ballot_sync(kAllLanes, mine > 0 && sum + up_to >= target ? 1 : 0);
    bool reached = false;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (reached || !(terms.v[j] > 0)) continue;
      last = first + j;
      running += static_cast<double>(terms.v[j]);
      reached = running >= target;
    }
    if (reach != 0) return __shfl_sync(kAllLanes, last, __ffs(static_cast<int>(reach)) - 1);
    sum += __shfl_sync(kAllLanes, up_to, kWarpLanes - 1);
  }
#pragma unroll
  for (int lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) {
    const int32_t other = __shfl_xor_sync(kAllLanes, last, lanes);
    last = other > last ? other : last;
  }
  return last;
}

// After SumRow: the first id at which the running sum reaches `target`; `otherwise` if none does.
template <class Of>
__device__ __forceinline__ int32_t FindId(const float* row, int n, const Of& of, double target,
                                          int32_t otherwise) {
  const Chunks chunks(n);
  const double* const sums = OfRow().sums;
  int c = chunks.count;
#pragma unroll
  for (int i = 3; i >= 0; --i) {
    const int mine = 4 * LaneIndex() + i;
    if (mine < chunks.count && sums[mine] >= target) c = mine;
  }
  const unsigned reach = __ballot_sync(kAllLanes, c < chunks.count ? 1 : 0);
  if (reach == 0) return otherwise;
  if (WarpIndex() == 0) {
    c = __shfl_sync(kAllLanes, c, __ffs(static_cast<int>(reach)) - 1);
    const double before = c == 0 ? 0.0 : sums[c - 1];
    const int32_t found = FindInChunk(row, chunks, c, of, before, target);
    if (LaneIndex() == 0) OfRow().chosen = found < 0 ? otherwise : found;
  }
  __syncthreads();
  return OfRow().chosen;
}

// A value and its id as one number, which is larger for a larger value, and for equal values for
// the lower id. 0: none.
using Ranked = uint64_t;
__device__ __forceinline__ Ranked RankOf(float value, int32_t id) {
  const uint32_t bits = __float_as_uint(value + 0.0f);  // -0 is 0
  const uint32_t ordered = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | ~static_cast<uint32_t>(id);
}
__device__ __forceinline__ int32_t RankedId(Ranked r) {
  return static_cast<int32_t>(~static_cast<uint32_t>(r));
}
__device__ __forceinline__ float RankedValue(Ranked r) {
  const auto ordered = static_cast<uint32_t>(r >> 32);
  return __uint_as_float(ordered >> 31 != 0 ? ordered & 0x7FFFFFFFu : ~ordered);
}
__device__ __forceinline__ Ranked WarpBest(Ranked mine) {
#pragma unroll
  for (int lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) {
    const Ranked other = __shfl_xor_sync(kAllLanes, mine, lanes);
    mine = other > mine ? other : mine;
  }
  return mine;
}
// The largest of all threads of the block.
__device__ __forceinline__ Ranked BlockBest(Ranked mine) {
  mine = WarpBest(mine);
  __syncthreads();  // the last call's results are read
  if (LaneIndex() == 0) OfRow().best[WarpIndex()] = mine;
  __syncthreads();
  return WarpBest(LaneIndex() < RowWarps() ? OfRow().best[LaneIndex()] : 0);
}

}  // namespace rivulet::kernels
