// SPDX-License-Identifier: Apache-2.0
//   y = sum_i p_i v_i / sum_i p_i      p_i = exp(scale q . k_i - max)
//
// A tile is up to kRows rows against one block of positions. Scores: a warp has a quarter of the
// rows, a lane two neighbouring positions; keys pass through shared memory, so that keys of the
// slot, [key_dim, position], and keys of the pass, [position, key_dim], have one layout. Weighted
// values: each of 64 threads side by side has one column of every 64; of two threads below each
// other each has half of the rows. Values are read from device memory.
#include <cstdint>

#include "kernels/cuda/attention/softmax_attention_cuda.h"
#include "kernels/cuda/common/device_cuda.h"

namespace rivulet::kernels {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarpLanes;
constexpr int kAcross = 64, kDown = kThreads / kAcross;
constexpr int kKeys = 64, kLdKeys = kCacheBlock + 2;  // columns of k in a part of a block's keys
constexpr int kFewRows = 4, kRowsOfPrompt = 16;
constexpr int kMostTokens = 16;  // tokens of a thread block that takes token rows
// The weight of a position, and the factor of a block, that the row does not see.
constexpr float kUnseen = -1;

__device__ __forceinline__ int Bounded(int64_t x) {
  return static_cast<int>(x < 0 ? 0 : x > kCacheBlock ? kCacheBlock : x);
}

__device__ __forceinline__ float WarpMax(float v) {
#pragma unroll
  for (int lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) {
    v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, lanes));
  }
  return v;
}

// The part of the block at `base` that a row sees: positions first .. end - 1 of the block.
struct Seen {
  int first, end;
  __device__ Seen(const CudaSoftmaxAttentionArgs& p, int64_t position, int64_t base)
      : first(p.window == 0 ? 0 : Bounded(position - p.window + 1 - base)),
        end(Bounded(position + 1 - base)) {}
  __device__ bool any() const { return first < end; }
};

__device__ __forceinline__ int64_t FirstBlock(const CudaSoftmaxAttentionArgs& p, int64_t position) {
  return p.window == 0 || position < p.window ? 0 : (position - p.window + 1) / kCacheBlock;
}

// One head of keys of a segment.
struct KeptHead {
  const CudaSoftmaxAttentionArgs& p;
  CudaSegment segment;
  int64_t start;  // position of its first token
  int head;
  float* cache;

  __device__ KeptHead(const CudaSoftmaxAttentionArgs& args, const CudaSegment& of, int h)
      : p(args),
        segment(of),
        start(args.positions[of.first_row]),
        head(h),
        cache(args.states + static_cast<size_t>(of.slot) * args.floats_per_slot + args.kept +
              static_cast<size_t>(h) * CacheFloats(args.key_dim, args.value_dim)) {}
  __device__ float* Block(int64_t b) const {
    return cache + static_cast<size_t>(p.ring > 0 ? b % p.ring : b) * p.block_stride;
  }
  __device__ const float* Row(int token, int column) const {
    return p.in + At(segment.first_row + token, p.ld_in, column);
  }
  // Stores tokens from .. from + count - 1; in a ring without those that a later token of the
  // segment replaces.
  __device__ __forceinline__ void Keep(int from, int count) const {
    const int64_t last = start + segment.num_rows - 1;
#pragma unroll 1
    for (int first = from; first < from + count; first += kMostTokens) {
      // Neighbouring threads write neighbouring positions.
      const int token = first + static_cast<int>(threadIdx.x) % kMostTokens;
      const int64_t position = start + token;
      if (token >= from + count || (p.ring > 0 && position + p.ring * kCacheBlock <= last)) {
        continue;
      }
      float* const block = Block(position / kCacheBlock);
      const int at = static_cast<int>(position % kCacheBlock);
      const float* const k = Row(token, p.k + head * p.key_dim);
#pragma unroll 4
      for (int i = static_cast<int>(threadIdx.x) / kMostTokens; i < p.key_dim;
           i += kThreads / kMostTokens) {
        block[i * kCacheBlock + at] = k[i];
      }
      float* const to = block + (p.key_dim * kCacheBlock + at * p.value_dim);
      const float* const v = Row(token, p.v + head * p.value_dim);
#pragma unroll 4
      for (int i = static_cast<int>(threadIdx.x) / kMostTokens; i < p.value_dim;
           i += kThreads / kMostTokens) {
        to[i] = v[i];
      }
    }
  }
};

__device__ __forceinline__ void Store(const CudaSoftmaxAttentionArgs& p, int row, int column,
                                      float y) {
  if (p.out != nullptr) {
    p.out[At(row, p.ld_out, column)] = y;
  } else {
    p.out_half[At(row, p.ld_out, column)] = RoundF16(y);
  }
}

// Maximum and sum of a row's part of a block.
struct BlockSum {
  float maximum, sum;
};

// The factors for joining a block to a row's sums so far; adds the block to *row.
struct JoinFactors {
  float before, added;
  __device__ JoinFactors(const BlockSum& block, BlockSum* row) {
    const float larger = fmaxf(row->maximum, block.maximum);
    before = expf(row->maximum - larger);
    added = expf(block.maximum - larger);
    *row = {larger, fmaf(row->sum, before, block.sum * added)};
  }
};

template <int kRows, int kColumns>
struct Tile {
  static constexpr int kLd = kRows + 4;        // stride of rows side by side
  static constexpr int kAhead = 8 / kColumns;  // positions whose values are in flight
  static constexpr int kWarpRows = kRows / kWarps, kThreadRows = kRows / kDown;
  // Thread blocks per multiprocessor. Without this number nvcc spills a few registers to fit in one
  // more.
  static constexpr int kBlocks = kThreadRows * kColumns > 16 ? 3 : 4;
  using Values = float[kColumns][kThreadRows];

  static constexpr int SharedFloats(int key_dim) {
    return key_dim * kLd + kKeys * kLdKeys + kCacheBlock * kLd + 4 * kRows;
  }

  const KeptHead& kept;
  float *q, *keys, *weights, *before, *added, *factors;
  int32_t* tokens;           // of the rows
  int first = 0, count = 0;  // rows of the segment: queries of a token side by side

  __device__ explicit Tile(const KeptHead& head) : kept(head) {
    q = static_cast<float*>(SharedMemory());
    keys = q + head.p.key_dim * kLd;
    weights = keys + kKeys * kLdKeys;
    before = weights + kCacheBlock * kLd;
    added = before + kRows;
    factors = added + kRows;
    tokens = reinterpret_cast<int32_t*>(factors + kRows);
  }
  __device__ int Token(int row) const { return tokens[row]; }
  // The position of a row; -1 for a row that the tile does not have, so that it sees nothing.
  __device__ int64_t Position(int row) const {
    return row < count ? kept.start + Token(row) : int64_t{-1};
  }
  __device__ int WarpRow(int r) const { return WarpIndex() * kWarpRows + r; }
  __device__ int ThreadRow(int r) const {
    return static_cast<int>(threadIdx.x) / kAcross * kThreadRows + r;
  }
  __device__ int Column(int j) const {
    return static_cast<int>(threadIdx.x) % kAcross + j * kAcross;
  }
  __device__ int QueryHead(int row) const {
    return (kept.head - Token(row)) * kept.p.queries + first + row;
  }

  // Loads the queries of rows first .. first + count - 1, after a barrier: others may still read
  // the old ones.
  __device__ __forceinline__ void Begin(int first_row, int rows) {
    const CudaSoftmaxAttentionArgs& p = kept.p;
    first = first_row;
    count = rows;
    __syncthreads();
    if (threadIdx.x < kRows) {
      tokens[threadIdx.x] = (first + static_cast<int>(threadIdx.x)) / p.queries;
    }
    __syncthreads();
#pragma unroll 1
    for (int r = 0; r < kRows; ++r) {
      const float* const from =
          r < count ? kept.Row(Token(r), p.q + QueryHead(r) * p.key_dim) : nullptr;
      for (int i = static_cast<int>(threadIdx.x); i < p.key_dim; i += kThreads) {
        q[i * kLd + r] = from == nullptr ? 0.0f : from[i];
      }
    }
  }

  // Loads columns `at` .. `at` + n - 1 of the keys of block b; zeros behind the last position.
  __device__ __forceinline__ void LoadKeys(int64_t b, int at, int n) {
    const CudaSoftmaxAttentionArgs& p = kept.p;
    const int64_t base = b * kCacheBlock;
    const int cached = Bounded(kept.start - base),
              known = Bounded(kept.start + kept.segment.num_rows - base);
    const float* const from = kept.Block(b) + at * kCacheBlock;
#pragma unroll 4
    for (int e = static_cast<int>(threadIdx.x); e < n * kCacheBlock; e += kThreads) {
      const int i = e / kCacheBlock, position = e % kCacheBlock;
      if (position < cached) keys[i * kLdKeys + position] = from[e];
      if (position >= known) keys[i * kLdKeys + position] = 0;
    }
#pragma unroll 4
    for (int e = static_cast<int>(threadIdx.x); e < (known - cached) * kKeys; e += kThreads) {
      const int i = e % kKeys, position = cached + e / kKeys;
      if (i >= n) continue;
      const int token = static_cast<int>(base + position - kept.start);
      keys[i * kLdKeys + position] = kept.Row(token, p.k + kept.head * p.key_dim + at)[i];
    }
  }

  // q . k of this warp's rows and this lane's positions.
  __device__ __forceinline__ void Scores(int64_t b, float (&s)[kWarpRows][2]) {
    const int key_dim = kept.p.key_dim, lane = LaneIndex();
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) s[r][0] = s[r][1] = 0;
#pragma unroll 1
    for (int at = 0; at < key_dim; at += kKeys) {
      const int n = key_dim - at < kKeys ? key_dim - at : kKeys;
      __syncthreads();
      LoadKeys(b, at, n);
      __syncthreads();
#pragma unroll 4
      for (int i = 0; i < n; ++i) {
        const float2 k = *reinterpret_cast<const float2*>(keys + i * kLdKeys + 2 * lane);
        const float* const x = q + (at + i) * kLd + WarpRow(0);
#pragma unroll
        for (int r = 0; r < kWarpRows; ++r) {
          s[r][0] = fmaf(x[r], k.x, s[r][0]);
          s[r][1] = fmaf(x[r], k.y, s[r][1]);
        }
      }
    }
  }

  // Scores and weights of block b. `join(row of this warp, whether it sees the block, its sum)` is
  // called by all lanes. Ends with a barrier.
  template <class Join>
  __device__ __forceinline__ void Weigh(int64_t b, const Join& join) {
    float s[kWarpRows][2];
    Scores(b, s);
    const int at = 2 * LaneIndex();
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      const Seen seen(kept.p, Position(WarpRow(r)), b * kCacheBlock);
      const bool sees[2] = {at >= seen.first && at < seen.end,
                            at + 1 >= seen.first && at + 1 < seen.end};
      const float x[2] = {s[r][0] * kept.p.scale, s[r][1] * kept.p.scale};
      const float maximum = WarpMax(fmaxf(sees[0] ? x[0] : -INFINITY, sees[1] ? x[1] : -INFINITY));
      s[r][0] = sees[0] ? expf(x[0] - maximum) : 0.0f;
      s[r][1] = sees[1] ? expf(x[1] - maximum) : 0.0f;
      join(r, seen.any(), BlockSum{maximum, WarpSum(s[r][0] + s[r][1])});
      weights[at * kLd + WarpRow(r)] = sees[0] ? s[r][0] : kUnseen;
      weights[(at + 1) * kLd + WarpRow(r)] = sees[1] ? s[r][1] : kUnseen;
    }
    __syncthreads();
  }

  // out += weights of positions begin .. end - 1 times their values, [position, stride] from v on.
  template <bool kMasked>
  __device__ __forceinline__ void AddValues(const float* v, int stride, int begin, int end,
                                            Values& out) const {
    const int value_dim = kept.p.value_dim;
#pragma unroll kAhead
    for (int position = begin; position < end; ++position, v += stride) {
      const float* const w = weights + position * kLd + ThreadRow(0);
      float x[kColumns];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) x[j] = Column(j) < value_dim ? v[Column(j)] : 0.0f;
#pragma unroll
      for (int r = 0; r < kThreadRows; ++r) {
        const float weight = w[r];
        if (kMasked && weight < 0) continue;  // a NaN is added
#pragma unroll
        for (int j = 0; j < kColumns; ++j) out[j][r] = fmaf(weight, x[j], out[j][r]);
      }
    }
  }

  // The weighted values of block b; positions before the segment are in the slot.
  __device__ __forceinline__ void WeighValues(int64_t b, Values& out) const {
    const CudaSoftmaxAttentionArgs& p = kept.p;
    const int64_t base = b * kCacheBlock;
    const Seen low(p, Position(0), base), high(p, Position(count - 1), base);
    const int cached = Bounded(kept.start - base);
    const int middle = cached < low.first ? low.first : cached > high.end ? high.end : cached;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
#pragma unroll
      for (int r = 0; r < kThreadRows; ++r) out[j][r] = 0;
    }
    const bool masked = low.first != high.first || low.end != high.end;
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      const bool fresh = part == 1;
      const int begin = fresh ? middle : low.first, end = fresh ? high.end : middle;
      if (begin >= end) continue;
      const float* const v =
          fresh
              ? kept.Row(static_cast<int>(base + begin - kept.start), p.v + kept.head * p.value_dim)
              : kept.Block(b) + (p.key_dim * kCacheBlock + begin * p.value_dim);
      const int stride = fresh ? p.ld_in : p.value_dim;
      if (masked) {
        AddValues<true>(v, stride, begin, end, out);
      } else {
        AddValues<false>(v, stride, begin, end, out);
      }
    }
  }

  // All blocks that the rows see, from the first to the last.
  __device__ __forceinline__ void Walk() {
    const CudaSoftmaxAttentionArgs& p = kept.p;
    BlockSum row[kWarpRows];
    Values y, block;
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) row[r] = {-INFINITY, 0};
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
#pragma unroll
      for (int r = 0; r < kThreadRows; ++r) y[j][r] = 0;
    }
    const int64_t last = Position(count - 1) / kCacheBlock;
#pragma unroll 1
    for (int64_t b = FirstBlock(p, Position(0)); b <= last; ++b) {
      Weigh(b, [&](int r, bool sees, const BlockSum& sum) {
        float joined[2] = {kUnseen, 0};
        if (sees) {
          const JoinFactors join(sum, &row[r]);
          joined[0] = join.before, joined[1] = join.added;
        }
        if (LaneIndex() == 0) before[WarpRow(r)] = joined[0], added[WarpRow(r)] = joined[1];
      });
      WeighValues(b, block);
#pragma unroll
      for (int r = 0; r < kThreadRows; ++r) {
        const float old = before[ThreadRow(r)], more = added[ThreadRow(r)];
        if (old < 0) continue;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) y[j][r] = fmaf(y[j][r], old, block[j][r] * more);
      }
    }
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      if (LaneIndex() == 0) factors[WarpRow(r)] = p.output_scale / row[r].sum;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) {
      const int at = ThreadRow(r);
      if (at >= count) continue;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        if (Column(j) >= p.value_dim) continue;
        Store(p, kept.segment.first_row + Token(at), QueryHead(at) * p.value_dim + Column(j),
              y[j][r] * factors[at]);
      }
    }
  }

  // Blocks `part`, part + parts, ... of the blocks that the rows see; all rows are of one token.
  __device__ __forceinline__ void Spread(int64_t part, int64_t parts) {
    const CudaSoftmaxAttentionArgs& p = kept.p;
    const int64_t begin = FirstBlock(p, Position(0)), last = Position(0) / kCacheBlock;
    const auto heads = static_cast<size_t>(p.heads) * static_cast<size_t>(p.queries);
    const size_t row = static_cast<size_t>(kept.segment.first_row + Token(0)) * heads;
    auto* const stats = reinterpret_cast<BlockSum*>(
        p.partials + static_cast<size_t>(p.rows) * heads * static_cast<size_t>(p.max_blocks) *
                         static_cast<size_t>(p.value_dim));
    Values block;
#pragma unroll 1
    for (int64_t b = begin + part; b <= last; b += parts) {
      const auto place = [&](int r) {
        return (row + static_cast<size_t>(QueryHead(r))) * static_cast<size_t>(p.max_blocks) +
               static_cast<size_t>(b - begin);
      };
      Weigh(b, [&](int r, bool sees, const BlockSum& sum) {
        if (sees && LaneIndex() == 0) stats[place(WarpRow(r))] = sum;
      });
      WeighValues(b, block);
#pragma unroll
      for (int r = 0; r < kThreadRows; ++r) {
        if (ThreadRow(r) >= count) continue;
        float* const to = p.partials + place(ThreadRow(r)) * static_cast<size_t>(p.value_dim);
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          if (Column(j) < p.value_dim) to[Column(j)] = block[j][r];
        }
      }
    }
  }
};

template <int kRows, int kColumns>
__device__ __forceinline__ void WalkTokens(const KeptHead& kept, int from, int count) {
  Tile<kRows, kColumns> tile(kept);
  const int queries = kept.p.queries, end = (from + count) * queries;
#pragma unroll 1
  for (int row = from * queries; row < end; row += kRows) {
    tile.Begin(row, end - row < kRows ? end - row : kRows);
    tile.Walk();
  }
}

// A thread block takes a segment and a head of keys (y), and then stores its keys and values.
template <int kRows, int kColumns>
__global__ void __launch_bounds__(kThreads, Tile<kRows, kColumns>::kBlocks)
    WalkSegments(CudaSoftmaxAttentionArgs p) {
  WaitForPredecessor();
  const CudaSegment segment = p.segments[blockIdx.x];
  if (segment.num_rows == 0) return;
  const KeptHead kept(p, segment, static_cast<int>(blockIdx.y));
  WalkTokens<kRows, kColumns>(kept, 0, segment.num_rows);
  __syncthreads();
  kept.Keep(0, segment.num_rows);
}

// Calls f(segment, first token, count) for each segment with rows among the `tokens` token rows
// from `first_row` on. `owner`: [kMostTokens] of shared memory. All threads call it.
template <class F>
__device__ __forceinline__ void ForEachPart(const CudaSoftmaxAttentionArgs& p, int first_row,
                                            int tokens, int32_t* owner, const F& f) {
  if (threadIdx.x < kMostTokens) owner[threadIdx.x] = -1;
  __syncthreads();
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < p.num_segments; i += kThreads) {
    const CudaSegment segment = p.segments[i];
    const int begin = segment.first_row - first_row, end = begin + segment.num_rows;
    for (int r = begin > 0 ? begin : 0; r < end && r < tokens; ++r) owner[r] = i;
  }
  __syncthreads();
#pragma unroll 1
  for (int r = 0; r < tokens;) {
    const int i = owner[r];
    int end = r + 1;
    while (end < tokens && owner[end] == i) ++end;
    if (i >= 0) {
      const CudaSegment segment = p.segments[i];
      f(segment, first_row + r - segment.first_row, end - r);
    }
    r = end;
  }
}

// A thread block takes `tokens` token rows and a head of keys (y); KeepRows stores them.
template <int kColumns>
__global__ void __launch_bounds__(kThreads, Tile<kRowsOfPrompt, kColumns>::kBlocks)
    WalkRows(CudaSoftmaxAttentionArgs p, int tokens) {
  WaitForPredecessor();
  using PromptTile = Tile<kRowsOfPrompt, kColumns>;
  auto* const owner = reinterpret_cast<int32_t*>(static_cast<float*>(SharedMemory()) +
                                                 PromptTile::SharedFloats(p.key_dim));
  ForEachPart(p, static_cast<int>(blockIdx.x) * tokens, tokens, owner,
              [&](const CudaSegment& segment, int from, int count) {
                const KeptHead kept(p, segment, static_cast<int>(blockIdx.y));
                WalkTokens<kRowsOfPrompt, kColumns>(kept, from, count);
              });
}

__global__ void __launch_bounds__(kThreads) KeepRows(CudaSoftmaxAttentionArgs p) {
  WaitForPredecessor();
  auto* const owner = static_cast<int32_t*>(SharedMemory());
  ForEachPart(p, static_cast<int>(blockIdx.x) * kMostTokens, kMostTokens, owner,
              [&](const CudaSegment& segment, int from, int count) {
                KeptHead(p, segment, static_cast<int>(blockIdx.y)).Keep(from, count);
              });
}

// A thread block takes a segment, a head of keys (y) and every gridDim.z-th block of positions.
template <int kRows, int kColumns>
__global__ void __launch_bounds__(kThreads, Tile<kRows, kColumns>::kBlocks)
    SpreadBlocks(CudaSoftmaxAttentionArgs p) {
  WaitForPredecessor();
  const CudaSegment segment = p.segments[blockIdx.x];
  if (segment.num_rows == 0) return;
  const KeptHead kept(p, segment, static_cast<int>(blockIdx.y));
  Tile<kRows, kColumns> tile(kept);
#pragma unroll 1
  for (int token = 0; token < segment.num_rows; ++token) {
#pragma unroll 1
    for (int query = 0; query < p.queries; query += kRows) {
      const int left = p.queries - query;
      tile.Begin(token * p.queries + query, left < kRows ? left : kRows);
      tile.Spread(blockIdx.z, gridDim.z);
    }
  }
}

// A thread block takes a segment and a head of queries (y) and joins the blocks of SpreadBlocks, 32
// at a time, whose factors are computed together. The thread block of the first head of queries of
// each head of keys then stores the keys and values.
__global__ void __launch_bounds__(kThreads) JoinBlocks(CudaSoftmaxAttentionArgs p) {
  WaitForPredecessor();
  const CudaSegment segment = p.segments[blockIdx.x];
  if (segment.num_rows == 0) return;
  const int head = static_cast<int>(blockIdx.y), lane = LaneIndex();
  const auto heads = static_cast<size_t>(p.heads) * static_cast<size_t>(p.queries),
             max_blocks = static_cast<size_t>(p.max_blocks),
             value_dim = static_cast<size_t>(p.value_dim);
  const KeptHead kept(p, segment, head / p.queries);
  const auto* const stats = reinterpret_cast<const BlockSum*>(
      p.partials + static_cast<size_t>(p.rows) * heads * max_blocks * value_dim);
#pragma unroll 1
  for (int token = 0; token < segment.num_rows; ++token) {
    const int64_t position = kept.start + token;
    const auto blocks = static_cast<int>(position / kCacheBlock - FirstBlock(p, position)) + 1;
    const size_t first =
        (static_cast<size_t>(segment.first_row + token) * heads + static_cast<size_t>(head)) *
        max_blocks;
#pragma unroll 1
    for (int column = static_cast<int>(threadIdx.x) - lane; column < p.value_dim;
         column += kThreads) {
      const int mine = column + lane;
      BlockSum row = {-INFINITY, 0};
      float y = 0;
#pragma unroll 1
      for (int b = 0; b < blocks; b += kWarpLanes) {
        const int left = blocks - b, count = left < kWarpLanes ? left : kWarpLanes;
        const BlockSum block =
            lane < count ? stats[first + static_cast<size_t>(b + lane)] : BlockSum{-INFINITY, 0};
        // The largest maximum of the blocks up to this lane's, and of the blocks before it.
        float largest = fmaxf(row.maximum, block.maximum);
#pragma unroll
        for (int lanes = 1; lanes < kWarpLanes; lanes *= 2) {
          const float left_of = __shfl_up_sync(kAllLanes, largest, lanes);
          if (lane >= lanes) largest = fmaxf(largest, left_of);
        }
        float before = __shfl_up_sync(kAllLanes, largest, 1);
        if (lane == 0) before = row.maximum;
        before = expf(before - largest);
        const float added = expf(block.maximum - largest), sum = block.sum * added;
        row.maximum = __shfl_sync(kAllLanes, largest, kWarpLanes - 1);
#pragma unroll 4
        for (int i = 0; i < count; ++i) {
          const float old = __shfl_sync(kAllLanes, before, i),
                      more = __shfl_sync(kAllLanes, added, i);
          const float value = mine < p.value_dim
                                  ? p.partials[(first + static_cast<size_t>(b + i)) * value_dim +
                                               static_cast<size_t>(mine)]
                                  : 0.0f;
          y = fmaf(y, old, value * more);
          row.sum = fmaf(row.sum, old, __shfl_sync(kAllLanes, sum, i));
        }
      }
      if (mine >= p.value_dim) continue;
      Store(p, segment.first_row + token, head * p.value_dim + mine,
            y * (p.output_scale / row.sum));
    }
  }
  if (head % p.queries == 0) kept.Keep(0, segment.num_rows);
}

constexpr size_t SharedBytes(int floats) { return static_cast<size_t>(floats) * sizeof(float); }

template <int kRows>
struct RowCount {
  static constexpr int value = kRows;
};

// Calls f(floats of a tile, WalkSegments, SpreadBlocks) for the smallest tile.
template <class F>
cudaError_t ForTile(const CudaSoftmaxAttentionArgs& args, const F& f) {
  const auto for_columns = [&](auto rows) {
    constexpr int kRows = decltype(rows)::value;
    return args.value_dim <= 2 * kAcross ? f(Tile<kRows, 2>::SharedFloats(args.key_dim),
                                             WalkSegments<kRows, 2>, SpreadBlocks<kRows, 2>)
                                         : f(Tile<kRows, 4>::SharedFloats(args.key_dim),
                                             WalkSegments<kRows, 4>, SpreadBlocks<kRows, 4>);
  };
  return args.queries <= kFewRows ? for_columns(RowCount<kFewRows>())
                                  : for_columns(RowCount<kRowsOfPrompt>());
}

cudaError_t StartRows(const CudaLaunch& launch, const CudaSoftmaxAttentionArgs& args) {
  const int tokens = args.queries >= kMostTokens ? 1 : kMostTokens / args.queries;
  const auto grid = [&](int tokens_of_block) {
    return dim3(static_cast<unsigned>((args.rows + tokens_of_block - 1) / tokens_of_block),
                static_cast<unsigned>(args.heads));
  };
  const auto start = [&](auto* kernel, int floats) {
    return LaunchGrid(launch, kernel, grid(tokens), kThreads, SharedBytes(floats + kMostTokens),
                      args, tokens);
  };
  const cudaError_t error =
      args.value_dim <= 2 * kAcross
          ? start(WalkRows<2>, Tile<kRowsOfPrompt, 2>::SharedFloats(args.key_dim))
          : start(WalkRows<4>, Tile<kRowsOfPrompt, 4>::SharedFloats(args.key_dim));
  if (error != cudaSuccess) return error;
  return LaunchGrid(launch, KeepRows, grid(kMostTokens), kThreads, SharedBytes(kMostTokens), args);
}

// The number of parts into which the blocks of a sequence are spread; 1: thread blocks walk them.
int64_t PartsOf(const CudaLaunch& launch, const CudaSoftmaxAttentionArgs& args) {
  constexpr int kBlocksEach = 4;  // desired thread blocks per multiprocessor
  const int64_t units = int64_t{args.num_segments} * args.heads;
  const size_t needed =
      static_cast<size_t>(args.rows) *
      SoftmaxPartialFloats(args.heads * args.queries, args.value_dim, args.max_blocks);
  if (args.partials == nullptr || needed > args.partial_floats || units >= kSoftmaxSpreadUnits) {
    return 1;
  }
  const int64_t parts = (int64_t{kBlocksEach} * launch.multiprocessors + units - 1) / units;
  return parts < args.max_blocks ? parts : args.max_blocks;
}

bool Valid(const CudaSoftmaxAttentionArgs& args) {
  const int64_t width = int64_t{args.heads} * args.queries;
  const auto fits = [&](int first, int64_t n) { return first >= 0 && first + n <= args.ld_in; };
  const bool sizes = args.num_segments >= 0 && args.rows >= 0 && args.heads >= 1 &&
                     args.heads <= 65535 && args.queries >= 1 && args.key_dim >= 1 &&
                     args.key_dim <= kMaxCudaSoftmaxDim && args.value_dim >= 1 &&
                     args.value_dim <= kMaxCudaSoftmaxDim && width <= 65535;
  if (!sizes || args.window < 0 || args.max_blocks < 0) return false;
  const bool ring = args.ring == 0 || (args.window > 0 && args.ring >= RingBlocks(args.window));
  const bool columns =
      fits(args.q, width * args.key_dim) && fits(args.k, int64_t{args.heads} * args.key_dim) &&
      fits(args.v, int64_t{args.heads} * args.value_dim) && args.ld_out >= width * args.value_dim;
  const bool arrays = args.segments != nullptr && args.positions != nullptr && args.in != nullptr &&
                      args.states != nullptr && (args.out == nullptr) != (args.out_half == nullptr);
  return ring && columns && arrays &&
         args.block_stride >=
             static_cast<size_t>(args.heads) * CacheFloats(args.key_dim, args.value_dim);
}

}  // namespace

cudaError_t PrepareSoftmaxAttentionCuda() {
  return PrepareKernels(WalkSegments<kFewRows, 2>, WalkSegments<kFewRows, 4>,
                        WalkSegments<kRowsOfPrompt, 2>, WalkSegments<kRowsOfPrompt, 4>,
                        SpreadBlocks<kFewRows, 2>, SpreadBlocks<kFewRows, 4>,
                        SpreadBlocks<kRowsOfPrompt, 2>, SpreadBlocks<kRowsOfPrompt, 4>, WalkRows<2>,
                        WalkRows<4>, KeepRows, JoinBlocks);
}

cudaError_t SoftmaxAttentionCuda(const CudaLaunch& launch, const CudaSoftmaxAttentionArgs& args) {
  if (!Valid(args)) return cudaErrorInvalidValue;
  if (args.num_segments == 0 || args.rows == 0) return cudaSuccess;
  // One thread block walks the tokens of a segment, or several if there are many tokens.
  constexpr int kManyMore = 16;
  if (args.rows - args.num_segments >= kManyMore) return StartRows(launch, args);
  const int64_t parts = PartsOf(launch, args);
  const auto segments = static_cast<unsigned>(args.num_segments),
             heads = static_cast<unsigned>(args.heads);
  return ForTile(args, [&](int floats, auto* walk, auto* spread) {
    if (parts <= 1) {
      return LaunchGrid(launch, walk, dim3(segments, heads), kThreads, SharedBytes(floats), args);
    }
    const cudaError_t error =
        LaunchGrid(launch, spread, dim3(segments, heads, static_cast<unsigned>(parts)), kThreads,
                   SharedBytes(floats), args);
    if (error != cudaSuccess) return error;
    return LaunchGrid(launch, JoinBlocks,
                      dim3(segments, heads * static_cast<unsigned>(args.queries)), kThreads, 0,
                      args);
  });
}

}  // namespace rivulet::kernels
