// SPDX-License-Identifier: Apache-2.0
// One block of Fused(): its rows' step, phase by phase (fused_cuda.h). Included by fused_*cuda.cu
// only. All methods are called by all threads; each ends with a barrier, so that the next may read
// what it wrote.
#pragma once

#include "kernels/embed_row_cuda.h"
#include "kernels/fused_attention_cuda.h"
#include "kernels/fused_product_cuda.h"
#include "kernels/latency_product_cuda.h"
#include "kernels/sample_row_cuda.h"

namespace rivulet::kernels {

inline constexpr int kFusedTeams = kFusedThreads / kRowThreads;
static_assert(kFusedTeams <= kMostTeams);

// Apart from the rest, so that their registers are: what a step does once. The draws of a row of
// the launch, by a team; `token` becomes what the row feeds next, -1: nothing.
__device__ __noinline__ inline void DrawRow(const FusedArgs& p, int row, int32_t* token) {
  CudaSampleArgs args = p.sample;
  args.work = p.step.outputs;
  args.fed = p.step.tokens;
  args.next = p.step;
  SampleRow(args, row, static_cast<RowShared*>(SharedMemory())[RowTeam()],
            [&](bool goes_on, int32_t drawn) { *token = goes_on ? drawn : -1; });
}

// Rows of this block; the last blocks of the last cluster may have none.
__device__ inline int RowsOf(const FusedArgs& p) {
  const int left = p.rows - static_cast<int>(blockIdx.x) * p.plan.rows;
  return left < 0 ? 0 : left < p.plan.rows ? left : p.plan.rows;
}

// Order: of the attention's sums; kHigh: tiles of 16 rows; kClustered: blocks share weights.
template <class Order, int kHigh, bool kClustered>
class FusedBlock {
 public:
  __device__ explicit FusedBlock(const FusedArgs& args)
      : p(args),
        shared_(static_cast<float*>(SharedMemory())),
        first_row_(static_cast<int>(blockIdx.x) * args.plan.rows),
        rows_(RowsOf(args)),
        stream_(args, shared_, slots()) {}

  // Learns the rows of the first step, and lets the stream begin. False: none is active (in a
  // cluster blocks go on without any, for the others need their shares of weights).
  __device__ bool Begin();
  // Learns what the rows of a later step feed. False: none is left.
  __device__ bool Next();
  __device__ void Embed();
  __device__ void Layer(int index);
  // Head and draws, and with them the end of a step.
  __device__ void Draw();
  __device__ void End() { stream_.End(); }

 private:
  // Rows as they are fed: [kFusedMaxRows] each.
  __device__ int64_t* positions() const {
    return reinterpret_cast<int64_t*>(shared_ + p.plan.rows_at);
  }
  __device__ int32_t* tokens() const {
    return reinterpret_cast<int32_t*>(positions() + kFusedMaxRows);
  }
  __device__ int32_t* slots() const { return tokens() + kFusedMaxRows; }
  __device__ float* X(int row) const { return shared_ + p.plan.x + row * p.plan.ld_x; }
  // Rows of F16 pairs at an offset of the plan.
  __device__ uint32_t* Halves(int at) const { return reinterpret_cast<uint32_t*>(shared_ + at); }
  __device__ bool Alive(int row) const { return (alive_ >> row & 1u) != 0; }
  __device__ void FindAlive();
  __device__ bool Elu() const { return p.model.attention.map.kind == FeatureMapKind::kElu; }

  __device__ void KeepAsInput(int row);
  __device__ void Normalize(float* x, const StepNorm& norm) const;
  __device__ void NormalizeRows(const StepNorm& norm);
  __device__ void Round(const StepLayer& layer, int index, int first_head);
  __device__ void Project(const float* omega, int first_head);
  __device__ HeadUnit UnitOf(Unit unit, int index, int first_head) const;
  template <class Give>
  __device__ void Multiply(const CudaMatrix& w, const TileGroups& groups, int a, int ld,
                           const Give& give) {
    MultiplyFused<kHigh>(stream_, w, groups, Halves(a), ld, rows_, give);
  }

  const FusedArgs& p;
  float* const shared_;
  const int first_row_, rows_;  // of the launch; of this block
  PieceStream<Order, kClustered> stream_;
  uint32_t alive_ = 0;
};

template <class Order, int kHigh, bool kClustered>
__device__ void FusedBlock<Order, kHigh, kClustered>::FindAlive() {
  uint32_t alive = 0;
  for (int i = 0; i < rows_; ++i) {
    if (tokens()[i] >= 0) alive |= 1u << i;
  }
  alive_ = alive;
}

template <class Order, int kHigh, bool kClustered>
__device__ bool FusedBlock<Order, kHigh, kClustered>::Begin() {
  const int i = static_cast<int>(threadIdx.x), r = first_row_ + i;
  if (i < rows_) {
    const CudaSegment segment = p.step.segments[r];
    tokens()[i] = segment.num_rows > 0 ? p.step.tokens[r] : -1;
    positions()[i] = p.step.positions[r];
    slots()[i] = segment.slot;
  }
  __syncthreads();
  FindAlive();
  if (!kClustered && alive_ == 0) return false;
  stream_.Begin(alive_);
  return true;
}

// Draw() left the tokens.
template <class Order, int kHigh, bool kClustered>
__device__ bool FusedBlock<Order, kHigh, kClustered>::Next() {
  if (static_cast<int>(threadIdx.x) < rows_) ++positions()[threadIdx.x];
  FindAlive();
  stream_.SetAlive(alive_);
  __syncthreads();
  return kClustered || alive_ != 0;
}

// x of a row as the input of a product, by one warp.
template <class Order, int kHigh, bool kClustered>
__device__ void FusedBlock<Order, kHigh, kClustered>::KeepAsInput(int row) {
  const int hidden = p.model.hidden;
  const float* x = X(row);
  uint32_t* a = Halves(p.plan.a) + row * p.plan.ld_a;
  for (int i = LaneIndex(); i < (hidden + 31) / 32 * 16; i += kWarpLanes) {
    a[i] = PackHalves(2 * i < hidden ? x[2 * i] : 0.0f, 2 * i + 1 < hidden ? x[2 * i + 1] : 0.0f);
  }
}

template <class Order, int kHigh, bool kClustered>
__device__ void FusedBlock<Order, kHigh, kClustered>::Embed() {
  for (int r = WarpIndex(); r < rows_; r += kFusedWarps) {
    if (!Alive(r)) continue;
    EmbedRow(p.model.embed, tokens()[r], positions()[r], X(r), p.plan.ld_x);
    __syncwarp();
    KeepAsInput(r);
  }
  __syncthreads();
}

// x <- norm(x) of a row, by one warp; zero behind the row.
template <class Order, int kHigh, bool kClustered>
__device__ void FusedBlock<Order, kHigh, kClustered>::Normalize(float* x,
                                                                const StepNorm& norm) const {
  const RowStatistics statistics = NormalizeStatistics(x, p.model.hidden, p.model.norm_eps);
  for (int i = LaneIndex(); i < p.plan.ld_x; i += kWarpLanes) {
    x[i] = i < p.model.hidden
               ? Normalized(x[i], statistics, __ldg(norm.weight + i), __ldg(norm.bias + i))
               : 0.0f;
  }
  __syncwarp();
}

template <class Order, int kHigh, bool kClustered>
__device__ void FusedBlock<Order, kHigh, kClustered>::NormalizeRows(const StepNorm& norm) {
  for (int r = WarpIndex(); r < rows_; r += kFusedWarps) {
    if (!Alive(r)) continue;
    Normalize(X(r), norm);
    KeepAsInput(r);
  }
  __syncthreads();
}

}  // namespace rivulet::kernels
