// SPDX-License-Identifier: Apache-2.0
//   kDecay    S <- diag(w) S + k v^T
//   kDelta    S <- diag(w) S + k (beta (v - (diag(w) S)^T k))^T
//   kRankOne  S <- diag(w) S + b (S^T a)^T + k v^T
//   then      y = S^T q
#include "kernels/cuda/blocks/recurrence_cuda.h"
#include "kernels/cuda/common/async_copy_cuda.h"
#include "kernels/cuda/common/device_cuda.h"

namespace rivulet::kernels {
namespace {

// kGroups groups of lanes divide the keys: chunk c of four keys belongs to group c mod kGroups. The
// lanes of a group have four columns each or, where segments are few, one. The order of a sum is
// the same.
constexpr int kLaneChunks = 4;
template <UpdateRule kRule, int kGroups>
struct RecurrenceShape {
  static constexpr int kQuads = kWarpLanes / kGroups, kColumns = 4 * kQuads;
  static constexpr int kKeys = 4 * kLaneChunks * kGroups;
  static constexpr int kStaged = kKeys / kWarpLanes;  // values of a vector that a lane loads
  // q, k, w and, with kRankOne, a, b.
  static constexpr int kVectors = kRule == UpdateRule::kRankOne ? 5 : 3;
  static constexpr size_t kShared = size_t{kVectors} * kKeys * sizeof(float);
};

__device__ __forceinline__ const float* VectorAt(const CudaHeadVectors& x, int row, int head) {
  return x.data + At(row, x.ld) + At(head, x.head_stride);
}

// The head of q and k of `head`.
__device__ __forceinline__ int KeyHead(const CudaRecurrenceArgs& p, int head) {
  return p.tiled_keys ? head % (p.heads / p.heads_per_key) : head / p.heads_per_key;
}

// A lane's part of the next token.
template <UpdateRule kRule, int kGroups>
struct NextToken {
  using Shape = RecurrenceShape<kRule, kGroups>;
  float keys[Shape::kVectors][Shape::kStaged];
  float v[4], beta;

  __device__ __forceinline__ void LoadKeys(const float* from, int n, int vector) {
#pragma unroll
    for (int i = 0; i < Shape::kStaged; ++i) {
      const int key = LaneIndex() + i * kWarpLanes;
      keys[vector][i] = key < n ? from[key] : 0.0f;
    }
  }
  __device__ __forceinline__ void Load(const CudaRecurrenceArgs& p, int row, int head, int column) {
    const int key_head = KeyHead(p, head);
    LoadKeys(VectorAt(p.q, row, key_head), p.key_dim, 0);
    LoadKeys(VectorAt(p.k, row, key_head), p.key_dim, 1);
    if (p.w_dim > 1) LoadKeys(VectorAt(p.w, row, head), p.key_dim, 2);
    if (p.w_dim <= 1) {
      const float w = p.w_dim == 0 ? 1.0f : *VectorAt(p.w, row, head);
#pragma unroll
      for (int i = 0; i < Shape::kStaged; ++i) keys[2][i] = w;
    }
    if constexpr (kRule == UpdateRule::kRankOne) {
      LoadKeys(VectorAt(p.a, row, head), p.key_dim, 3);
      LoadKeys(VectorAt(p.b, row, head), p.key_dim, 4);
    }
    const float* values = VectorAt(p.v, row, head) + column;
#pragma unroll
    for (int c = 0; c < 4; ++c) v[c] = column + c < p.value_dim ? values[c] : 0.0f;
    beta = p.beta.data == nullptr ? 1.0f : p.beta_scale * *VectorAt(p.beta, row, head);
  }
  __device__ __forceinline__ void Stage(float* shared) const {
#pragma unroll
    for (int i = 0; i < Shape::kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < Shape::kStaged; ++j) {
        shared[i * Shape::kKeys + LaneIndex() + j * kWarpLanes] = keys[i][j];
      }
    }
  }
};

// Four keys of a staged vector.
__device__ __forceinline__ void KeysOf(const float* vector, int chunk, float (&out)[4]) {
  const float4 v = *reinterpret_cast<const float4*>(vector + 4 * chunk);
  out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
}

// Sums over the groups, on all lanes.
template <int kGroups, int kC>
__device__ __forceinline__ void SumGroups(float (&sum)[kC]) {
#pragma unroll
  for (int lanes = kWarpLanes / kGroups; lanes < kWarpLanes; lanes *= 2) {
#pragma unroll
    for (int c = 0; c < kC; ++c) sum[c] += __shfl_xor_sync(kAllLanes, sum[c], lanes);
  }
}

// A lane's part of S: chunk, key, column.
template <int kC>
using LaneState = float[kLaneChunks][4][kC];

// Calls f(chunk of the lane, chunk of the head) for the lane's chunks that have keys.
template <int kGroups, class F>
__device__ __forceinline__ void ForEachChunk(int key_dim, const F& f) {
#pragma unroll
  for (int j = 0; j < kLaneChunks; ++j) {
    if (4 * j * kGroups < key_dim) f(j, j * kGroups + LaneIndex() / (kWarpLanes / kGroups));
  }
}

// Moves the lane's part of S between registers and memory, `state` being its first column.
template <int kGroups, bool kStore, int kC>
__device__ __forceinline__ void MoveState(const CudaRecurrenceArgs& p, float* state, int column,
                                          LaneState<kC>& s) {
  const bool whole = kC == 4 && p.value_dim % 4 == 0;
  ForEachChunk<kGroups>(p.key_dim, [&](int j, int chunk) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int key = 4 * chunk + e;
      if (key >= p.key_dim || column >= p.value_dim) continue;
      float* const at = state + At(key, p.value_dim);
      float(&lane)[kC] = s[j][e];
      if constexpr (kC == 4) {
        if (whole && kStore) {
          *reinterpret_cast<float4*>(at) = make_float4(lane[0], lane[1], lane[2], lane[3]);
        } else if (whole) {
          const float4 v = *reinterpret_cast<const float4*>(at);
          lane[0] = v.x, lane[1] = v.y, lane[2] = v.z, lane[3] = v.w;
        }
      }
      if (whole) continue;
#pragma unroll
      for (int c = 0; c < kC; ++c) {
        if (column + c >= p.value_dim) continue;
        if (kStore) {
          at[c] = lane[c];
        } else {
          lane[c] = at[c];
        }
      }
    }
  });
}

// One token: S in registers advances, `y` becomes S^T q. `added`: v; becomes the factor of k^T in
// the update.
template <UpdateRule kRule, int kGroups, int kC>
__device__ __forceinline__ void Advance(const float* shared, int key_dim, float beta,
                                        float (&added)[kC], LaneState<kC>& s, float (&y)[kC]) {
  constexpr int kKeys = RecurrenceShape<kRule, kGroups>::kKeys;
  float read[kC] = {};
  if constexpr (kRule != UpdateRule::kDecay) {
    ForEachChunk<kGroups>(key_dim, [&](int j, int chunk) {
      float x[4], w[4];
      KeysOf(shared + (kRule == UpdateRule::kDelta ? 1 : 3) * kKeys, chunk, x);
      if constexpr (kRule == UpdateRule::kDelta) KeysOf(shared + 2 * kKeys, chunk, w);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if constexpr (kRule == UpdateRule::kDelta) x[e] = w[e] * x[e];
#pragma unroll
        for (int c = 0; c < kC; ++c) read[c] = fmaf(x[e], s[j][e][c], read[c]);
      }
    });
    SumGroups<kGroups>(read);
  }
#pragma unroll
  for (int c = 0; c < kC; ++c) {
    if constexpr (kRule == UpdateRule::kDecay) added[c] = beta * added[c];
    if constexpr (kRule == UpdateRule::kDelta) added[c] = beta * (added[c] - read[c]);
    y[c] = 0;
  }
  ForEachChunk<kGroups>(key_dim, [&](int j, int chunk) {
    float q[4], k[4], w[4], b[4];
    KeysOf(shared, chunk, q);
    KeysOf(shared + kKeys, chunk, k);
    KeysOf(shared + 2 * kKeys, chunk, w);
    if constexpr (kRule == UpdateRule::kRankOne) KeysOf(shared + 4 * kKeys, chunk, b);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
      for (int c = 0; c < kC; ++c) {
        float state = w[e] * s[j][e][c];
        if constexpr (kRule == UpdateRule::kRankOne) state = fmaf(b[e], read[c], state);
        state = fmaf(k[e], added[c], state);
        s[j][e][c] = state;
        y[c] = fmaf(q[e], state, y[c]);
      }
    }
  });
  SumGroups<kGroups>(y);
}

// Warps of a block, each with a part of its own. With one warp, the blocks that a multiprocessor
// can hold leave its memory idle: 40 GB of Mamba-2's states moved at 2.3 TB/s, and move at 3.0 with
// four (H200). RWKV-7's rule needs the registers of one.
template <UpdateRule kRule>
constexpr int kWarpsOfBlock = kRule == UpdateRule::kRankOne ? 1 : 4;

template <UpdateRule kRule, int kGroups>
__global__ void __launch_bounds__(kWarpsOfBlock<kRule>* kWarpLanes)
    Recurrence(CudaRecurrenceArgs p) {
  using Shape = RecurrenceShape<kRule, kGroups>;
  WaitForPredecessor();
  const int tiles = (p.value_dim + Shape::kColumns - 1) / Shape::kColumns;
  const int item = static_cast<int>(blockIdx.x) * kWarpsOfBlock<kRule> + WarpIndex();
  if (item >= p.num_segments * tiles * p.heads) return;  // whole warps; no block barrier follows
  const int tile = item % tiles, head = item / tiles % p.heads;
  const CudaSegment segment = p.segments[item / tiles / p.heads];
  if (segment.num_rows == 0) return;
  auto* const shared =
      static_cast<float*>(SharedMemory()) + WarpIndex() * Shape::kVectors * Shape::kKeys;
  const int group = LaneIndex() / Shape::kQuads;
  const int column = tile * Shape::kColumns + 4 * (LaneIndex() % Shape::kQuads);
  float* const state = p.states + static_cast<size_t>(segment.slot) * p.floats_per_slot +
                       p.s_offset + At(head, p.key_dim * p.value_dim) + column;
  const float skip = p.skip == nullptr ? 0.0f : p.skip[head];
  NextToken<kRule, kGroups> next;
  next.Load(p, segment.first_row, head, column);
  LaneState<4> s = {};
  MoveState<kGroups, false>(p, state, column, s);
  for (int t = 0; t < segment.num_rows; ++t) {
    const int row = segment.first_row + t;
    float added[4], y[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) added[c] = next.v[c];
    const float beta = next.beta;
    // A lane writes one of its four columns: a lane of group g writes column g.
    const float mine = group == 0   ? added[0]
                       : group == 1 ? added[1]
                       : group == 2 ? added[2]
                                    : added[3];
    __syncwarp();  // all lanes have read the last token's vectors
    next.Stage(shared);
    __syncwarp();
    if (t + 1 < segment.num_rows) next.Load(p, row + 1, head, column);
    Advance<kRule, kGroups>(shared, p.key_dim, beta, added, s, y);
    const float sum = group == 0 ? y[0] : group == 1 ? y[1] : group == 2 ? y[2] : y[3];
    if (group < 4 && column + group < p.value_dim) {
      p.y[At(row, p.ld_y, head * p.value_dim + column + group)] =
          p.skip == nullptr ? p.q_scale * sum : fmaf(skip, mine, p.q_scale * sum);
    }
  }
  MoveState<kGroups, true>(p, state, column, s);
}

// For few segments: a lane has one column of the group's keys instead of four, so a warp's chain of
// operations for a token is a third as long, and four times the number of warps work. Tokens are
// copied to shared memory three tokens ahead.
template <UpdateRule kRule, int kGroups>
struct FewShape {
  using Wide = RecurrenceShape<kRule, kGroups>;
  static constexpr int kColumns = Wide::kQuads, kAhead = 3, kStages = kAhead + 1;
  // A stage has the vectors of keys, then the columns of v, then beta.
  static constexpr int kV = Wide::kVectors * Wide::kKeys, kBeta = kV + kColumns;
  static constexpr int kStage = kBeta + 4;  // floats; a multiple of 4
  static_assert(kStage % 4 == 0);
  static constexpr size_t kShared = size_t{kStages} * kStage * sizeof(float);
};

// Copies tokens one after another. Addresses advance by a row: to compute them anew would be half
// of a token's instructions.
template <UpdateRule kRule, int kGroups>
class FewTokens {
 public:
  using Shape = FewShape<kRule, kGroups>;
  using Wide = typename Shape::Wide;

  __device__ __forceinline__ FewTokens(const CudaRecurrenceArgs& args, float* to, int row, int head,
                                       int first_column)
      : p_(args),
        shared_(to),
        v_(VectorAt(args.v, row, head) + first_column + LaneIndex()),
        beta_(args.beta.data == nullptr ? nullptr : VectorAt(args.beta, row, head)),
        w_step_(args.w_dim > 1 ? kWarpLanes : 0),
        brings_v_(LaneIndex() < Shape::kColumns && first_column + LaneIndex() < args.value_dim),
        brings_beta_(LaneIndex() == 0 && args.beta.data != nullptr) {
    const int key_head = KeyHead(args, head);
    keys_[0] = VectorAt(args.q, row, key_head) + LaneIndex();
    keys_[1] = VectorAt(args.k, row, key_head) + LaneIndex();
    keys_[2] = args.w_dim == 0 ? nullptr : VectorAt(args.w, row, head);
    if (args.w_dim > 1) keys_[2] += LaneIndex();
    if constexpr (kRule == UpdateRule::kRankOne) {
      keys_[3] = VectorAt(args.a, row, head) + LaneIndex();
      keys_[4] = VectorAt(args.b, row, head) + LaneIndex();
    }
    // Values that no token changes: zeros beyond the keys, and w = 1 for a rule without w.
    for (int i = LaneIndex(); i < Shape::kStages * Shape::kStage; i += kWarpLanes) {
      const int vector = i % Shape::kStage / Wide::kKeys;
      shared_[i] = vector == 2 && args.w_dim == 0 ? 1.0f : 0.0f;
    }
    __syncwarp();  // other lanes copy there
  }

  // Copies the next token into stage `at`.
  __device__ __forceinline__ void Bring(int at) {
    float* const stage = shared_ + at * Shape::kStage + LaneIndex();
#pragma unroll
    for (int vector = 0; vector < Wide::kVectors; ++vector) {
      if (vector == 2 && p_.w_dim == 0) continue;
      const int step = vector == 2 ? w_step_ : kWarpLanes;
#pragma unroll
      for (int i = 0; i < Wide::kStaged; ++i) {
        if (LaneIndex() + i * kWarpLanes < p_.key_dim) {
          CopyAsync<4>(stage + vector * Wide::kKeys + i * kWarpLanes, keys_[vector] + i * step);
        }
      }
      keys_[vector] += RowOf(vector);
    }
    if (brings_v_) CopyAsync<4>(stage + Shape::kV, v_);
    v_ += p_.v.ld;
    if (brings_beta_) {
      CopyAsync<4>(stage + Shape::kBeta, beta_);
      beta_ += p_.beta.ld;
    }
  }
  __device__ __forceinline__ const float* Stage(int at) const {
    return shared_ + at * Shape::kStage;
  }

 private:
  __device__ __forceinline__ int RowOf(int vector) const {
    return vector == 0   ? p_.q.ld
           : vector == 1 ? p_.k.ld
           : vector == 2 ? p_.w.ld
           : vector == 3 ? p_.a.ld
                         : p_.b.ld;
  }

  const CudaRecurrenceArgs& p_;
  float* const shared_;
  // Addresses for the next token: this lane's first key of each vector, its column of v; beta.
  const float* keys_[Wide::kVectors];
  const float *v_, *beta_;
  const int w_step_;  // stride between this lane's keys of w
  const bool brings_v_, brings_beta_;
};

template <UpdateRule kRule, int kGroups>
__global__ void __launch_bounds__(kWarpLanes) RecurrenceFew(CudaRecurrenceArgs p) {
  using Shape = FewShape<kRule, kGroups>;
  WaitForPredecessor();
  const int tiles = (p.value_dim + Shape::kColumns - 1) / Shape::kColumns;
  const int item = static_cast<int>(blockIdx.x);
  const int first_column = item % tiles * Shape::kColumns, head = item / tiles % p.heads;
  const CudaSegment segment = p.segments[item / tiles / p.heads];
  if (segment.num_rows == 0) return;
  FewTokens<kRule, kGroups> tokens(p, static_cast<float*>(SharedMemory()), segment.first_row, head,
                                   first_column);
  const int of_lane = LaneIndex() % Shape::kColumns, column = first_column + of_lane;
  float* const state = p.states + static_cast<size_t>(segment.slot) * p.floats_per_slot +
                       p.s_offset + At(head, p.key_dim * p.value_dim) + column;
  const float skip = p.skip == nullptr ? 0.0f : p.skip[head];
  const bool writes = LaneIndex() < Shape::kColumns && column < p.value_dim;
  float* out = p.y + At(segment.first_row, p.ld_y, head * p.value_dim + column);
#pragma unroll
  for (int t = 0; t < Shape::kAhead; ++t) {
    if (t < segment.num_rows) tokens.Bring(t);
    CommitCopies();
  }
  LaneState<1> s = {};
  MoveState<kGroups, false>(p, state, column, s);
  static_assert((Shape::kStages & (Shape::kStages - 1)) == 0);
#pragma unroll 1
  for (int t = 0; t < segment.num_rows; ++t) {
    WaitForCopies<Shape::kAhead - 1>();
    __syncwarp();  // token t has arrived for all lanes, and all lanes are done with token t - 1
    if (t + Shape::kAhead < segment.num_rows) {
      tokens.Bring((t + Shape::kAhead) & (Shape::kStages - 1));
    }
    CommitCopies();  // empty at the end, so that one group is closed per token
    const float* const stage = tokens.Stage(t & (Shape::kStages - 1));
    const float v = stage[Shape::kV + of_lane];
    const float beta = p.beta.data == nullptr ? 1.0f : p.beta_scale * stage[Shape::kBeta];
    float added[1] = {v}, y[1];
    Advance<kRule, kGroups>(stage, p.key_dim, beta, added, s, y);
    if (writes) *out = p.skip == nullptr ? p.q_scale * y[0] : fmaf(skip, v, p.q_scale * y[0]);
    out += p.ld_y;
  }
  WaitForCopies<0>();  // no copy may be open at the end
  MoveState<kGroups, true>(p, state, column, s);
}

// Blocks of `columns` columns.
int64_t Blocks(const CudaRecurrenceArgs& args, int columns) {
  const int64_t tiles = (args.value_dim + columns - 1) / columns;
  return tiles * args.heads * args.num_segments;
}

constexpr int kLongSegment = 16;  // tokens on average from which a launch is short beside them

// With fewer than two warps per multiprocessor, each scheduler has at most one warp and waits for
// it most of the time. With more, the wide kernel issues fewer instructions for the same work.
template <UpdateRule kRule, int kGroups>
cudaError_t Start(const CudaLaunch& launch, const CudaRecurrenceArgs& args) {
  using Shape = RecurrenceShape<kRule, kGroups>;
  const int64_t blocks = Blocks(args, Shape::kColumns);
  if constexpr (kGroups <= 8) {
    using Few = FewShape<kRule, kGroups>;
    if (blocks < 2 * int64_t{launch.multiprocessors}) {
      // While a predecessor's last blocks run, a few multiprocessors would get most of the warps,
      // and a prompt of 4,096 tokens would take 2.7 times as long (Mamba-2 130m, H200).
      CudaLaunch spread = launch;
      spread.overlap = launch.overlap && args.rows < kLongSegment * args.num_segments;
      return LaunchBlocks(spread, RecurrenceFew<kRule, kGroups>, Blocks(args, Few::kColumns),
                          kWarpLanes, Few::kShared, args);
    }
  }
  constexpr int kWarps = kWarpsOfBlock<kRule>;
  return LaunchBlocks(launch, Recurrence<kRule, kGroups>, (blocks + kWarps - 1) / kWarps,
                      kWarps * kWarpLanes, kWarps * Shape::kShared, args);
}

template <UpdateRule kRule>
cudaError_t StartRule(const CudaLaunch& launch, const CudaRecurrenceArgs& args) {
  if (args.key_dim <= RecurrenceShape<kRule, 4>::kKeys) return Start<kRule, 4>(launch, args);
  if (args.key_dim <= RecurrenceShape<kRule, 8>::kKeys) return Start<kRule, 8>(launch, args);
  if (args.key_dim <= RecurrenceShape<kRule, 16>::kKeys) return Start<kRule, 16>(launch, args);
  static_assert(RecurrenceShape<kRule, 32>::kKeys == kMaxCudaKeyDim);
  return Start<kRule, 32>(launch, args);
}

template <UpdateRule kRule>
cudaError_t PrepareRule() {
  return PrepareKernels(Recurrence<kRule, 4>, Recurrence<kRule, 8>, Recurrence<kRule, 16>,
                        Recurrence<kRule, 32>, RecurrenceFew<kRule, 4>, RecurrenceFew<kRule, 8>);
}

}  // namespace

const char* CheckRecurrenceCuda(const CudaRecurrenceArgs& args) {
  const bool delta = args.rule == UpdateRule::kDelta, rank_one = args.rule == UpdateRule::kRankOne;
  if (args.num_segments < 0 || args.heads < 1) return "num_segments >= 0 and heads >= 1";
  if (args.key_dim < 1 || args.value_dim < 1) return "key_dim, value_dim >= 1";
  if (args.key_dim > kMaxCudaKeyDim) return "key_dim is at most 512";
  if (args.heads_per_key < 1 || args.heads % args.heads_per_key != 0)
    return "heads_per_key divides heads";
  if (args.w_dim != 0 && args.w_dim != 1 && args.w_dim != args.key_dim)
    return "w_dim is 0, 1 or key_dim";
  if (args.q.data == nullptr || args.k.data == nullptr || args.v.data == nullptr)
    return "q, k and v must be set";
  if ((args.w.data != nullptr) != (args.w_dim > 0)) return "w is set where w_dim > 0, only there";
  if (args.beta.data == nullptr ? delta : rank_one) return "beta is set for kDelta, not kRankOne";
  if ((args.a.data != nullptr) != rank_one || (args.b.data != nullptr) != rank_one)
    return "a and b are set for kRankOne, only there";
  if (args.skip != nullptr && args.rule != UpdateRule::kDecay) return "skip is kDecay's alone";
  if (args.states == nullptr || args.y == nullptr || args.segments == nullptr)
    return "states, y and segments must be set";
  if (reinterpret_cast<uintptr_t>(args.states) % 16 != 0 || args.floats_per_slot % 4 != 0 ||
      args.s_offset % 4 != 0)
    return "states are 16-byte aligned";
  return args.ld_y < args.heads * args.value_dim ? "ld_y >= heads value_dim" : nullptr;
}

cudaError_t PrepareRecurrenceCuda() {
  return FirstError({PrepareRule<UpdateRule::kDecay>(), PrepareRule<UpdateRule::kDelta>(),
                     PrepareRule<UpdateRule::kRankOne>()});
}

cudaError_t RecurrenceCuda(const CudaLaunch& launch, const CudaRecurrenceArgs& args) {
  if (CheckRecurrenceCuda(args) != nullptr) return cudaErrorInvalidValue;
  switch (args.rule) {
    case UpdateRule::kDecay:
      return StartRule<UpdateRule::kDecay>(launch, args);
    case UpdateRule::kDelta:
      return StartRule<UpdateRule::kDelta>(launch, args);
    case UpdateRule::kRankOne:
      return StartRule<UpdateRule::kRankOne>(launch, args);
  }
  return cudaErrorInvalidValue;
}

}  // namespace rivulet::kernels
