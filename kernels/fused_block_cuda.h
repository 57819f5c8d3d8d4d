// SPDX-License-Identifier: Apache-2.0
// One block of Fused(): its rows' step, phase by phase (fused_cuda.h). Included by fused_cuda.cu
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

// Order: of the attention's sums; kHigh: tiles of 16 rows.
template <class Order, int kHigh>
class FusedBlock {
 public:
  __device__ explicit FusedBlock(const FusedArgs& args)
      : p(args),
        shared_(static_cast<float*>(SharedMemory())),
        first_row_(static_cast<int>(blockIdx.x) * args.plan.rows),
        rows_(args.rows - first_row_ < args.plan.rows ? args.rows - first_row_ : args.plan.rows),
        stream_(args, shared_, slots()) {}

  // Learns the rows of the first step, and lets the stream begin. False: none is active.
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
  PieceStream<Order> stream_;
  uint32_t alive_ = 0;
};

template <class Order, int kHigh>
__device__ void FusedBlock<Order, kHigh>::FindAlive() {
  uint32_t alive = 0;
  for (int i = 0; i < rows_; ++i) {
    if (tokens()[i] >= 0) alive |= 1u << i;
  }
  alive_ = alive;
}

template <class Order, int kHigh>
__device__ bool FusedBlock<Order, kHigh>::Begin() {
  const int i = static_cast<int>(threadIdx.x), r = first_row_ + i;
  if (i < rows_) {
    const CudaSegment segment = p.step.segments[r];
    tokens()[i] = segment.num_rows > 0 ? p.step.tokens[r] : -1;
    positions()[i] = p.step.positions[r];
    slots()[i] = segment.slot;
  }
  __syncthreads();
  FindAlive();
  if (alive_ == 0) return false;
  stream_.Begin(alive_);
  return true;
}

// Draw() left the tokens.
template <class Order, int kHigh>
__device__ bool FusedBlock<Order, kHigh>::Next() {
  if (static_cast<int>(threadIdx.x) < rows_) ++positions()[threadIdx.x];
  FindAlive();
  stream_.SetAlive(alive_);
  __syncthreads();
  return alive_ != 0;
}

// x of a row as the input of a product, by one warp.
template <class Order, int kHigh>
__device__ void FusedBlock<Order, kHigh>::KeepAsInput(int row) {
  const int hidden = p.model.hidden;
  const float* x = X(row);
  uint32_t* a = Halves(p.plan.a) + row * p.plan.ld_a;
  for (int i = LaneIndex(); i < (hidden + 31) / 32 * 16; i += kWarpLanes) {
    a[i] = PackHalves(2 * i < hidden ? x[2 * i] : 0.0f, 2 * i + 1 < hidden ? x[2 * i + 1] : 0.0f);
  }
}

template <class Order, int kHigh>
__device__ void FusedBlock<Order, kHigh>::Embed() {
  for (int r = WarpIndex(); r < rows_; r += kFusedWarps) {
    if (!Alive(r)) continue;
    EmbedRow(p.model.embed, tokens()[r], positions()[r], X(r), p.plan.ld_x);
    __syncwarp();
    KeepAsInput(r);
  }
  __syncthreads();
}

// x <- norm(x) of a row, by one warp; zero behind the row.
template <class Order, int kHigh>
__device__ void FusedBlock<Order, kHigh>::Normalize(float* x, const StepNorm& norm) const {
  const RowStatistics statistics = NormalizeStatistics(x, p.model.hidden, p.model.norm_eps);
  for (int i = LaneIndex(); i < p.plan.ld_x; i += kWarpLanes) {
    x[i] = i < p.model.hidden
               ? Normalized(x[i], statistics, __ldg(norm.weight + i), __ldg(norm.bias + i))
               : 0.0f;
  }
  __syncwarp();
}

template <class Order, int kHigh>
__device__ void FusedBlock<Order, kHigh>::NormalizeRows(const StepNorm& norm) {
  for (int r = WarpIndex(); r < rows_; r += kFusedWarps) {
    if (!Alive(r)) continue;
    Normalize(X(r), norm);
    KeepAsInput(r);
  }
  __syncthreads();
}

}  // namespace rivulet::kernels
