// SPDX-License-Identifier: Apache-2.0
// One block of Latency(): its share of a step, phase by phase. Included by latency_cuda.cu only.
//
// All threads call every method. Methods that return bool return the same to all threads; false: a
// value did not arrive, and the launch ends. A phase begins with a barrier, so that it may
// overwrite what the phase before has read.
#pragma once

#include "kernels/cuda/latency/latency_attention_cuda.h"
#include "kernels/cuda/latency/latency_store_cuda.h"

namespace rivulet::kernels {

class LatencyBlock {
 public:
  __device__ explicit LatencyBlock(const LatencyArgs& args)
      : p(args),
        share_(args.model, args.plan, static_cast<int>(blockIdx.x)),
        watch_{args.abort, args.patience_nanoseconds},
        shared_(static_cast<float*>(SharedMemory())) {}

  // Loads weights and states; returns whether this block has anything to do.
  __device__ bool Load();
  // Gets the tokens that the rows of `step` feed; also false where no row is left.
  __device__ bool Begin(int step);
  __device__ bool Layer(int layer);
  __device__ bool Head();
  __device__ void StoreStates() {
    if (p.plan.states_stay) MoveStates</*kBack=*/true>();
  }
  __device__ bool gave_up() const { return gave_up_; }
  __device__ int stage() const { return share_.stage; }

 private:
  // Positions, tokens and slots of the rows: [kLatencyMaxRows] each.
  __device__ int64_t* positions() const {
    return reinterpret_cast<int64_t*>(shared_ + p.plan.rows_at);
  }
  __device__ int32_t* tokens() const {
    return reinterpret_cast<int32_t*>(positions() + kLatencyMaxRows);
  }
  __device__ int32_t* slots() const { return tokens() + kLatencyMaxRows; }
  __device__ float* X(int row) const { return shared_ + p.plan.x + row * p.plan.ld_x; }
  __device__ uint32_t* A(int row) const {
    return reinterpret_cast<uint32_t*>(shared_ + p.plan.a) + row * p.plan.ld_a;
  }
  __device__ bool Alive(int row) const { return (alive_ >> row & 1u) != 0; }

  // A barrier; returns whether all threads received their values.
  __device__ bool Arrived(bool mine) {
    gave_up_ = __syncthreads_or(mine ? 0 : 1) != 0;
    return !gave_up_;
  }
  __device__ TileSource Take(const CudaMatrix& w, const Tiles& tiles) {
    const TileSource source{w, tiles, weights_};
    weights_ += static_cast<size_t>(tiles.all()) * TileBytes(w.type, w.k);
    return source;
  }

  template <bool kBack>
  __device__ void MoveStates();
  __device__ void Normalize(float* x, const float* weight, const float* bias) const;
  __device__ bool LoadRows(const uint64_t* from, const StepNorm& norm, bool last, uint32_t rows);
  __device__ void PutHalves(int row, int i, uint32_t value, int width) const;
  __device__ bool LoadInput(const uint64_t* from, int ld, int heads, int width);
  __device__ StoreSums StoreOf(int phase, const LayerWords& words, const CudaMatrix& w,
                               const HeadColumns& columns) const;

  const LatencyArgs& p;
  const BlockShare share_;
  const Watch watch_;
  float* const shared_;
  const char* weights_ = nullptr;   // of the next product
  int unit_ = 0;                    // the next (layer, head) of this block
  uint32_t began_ = 0, alive_ = 0;  // rows of the first step, of this step
  uint32_t cares_ = 0;              // rows whose tokens this block needs
  uint32_t flag_ = 0;
  bool gave_up_ = false;
};

__device__ inline bool LatencyBlock::Load() {
  char* to = reinterpret_cast<char*>(shared_ + p.plan.weights);
  bool works = false;
  const int units = share_.ForEachSlice(
      p.plan.rows, [&](int l) -> const StepLayer& { return p.model.layers[l]; },
      [&](const CudaMatrix& w, const Tiles& tiles) {
        const bool head = &w == &p.model.head;
        works = works || (tiles.all() > 0 && !(head && share_.LocalHead()));
        to = KeepTiles(w, tiles, to);
      });
  CommitCopies();
  WaitForCopies<0>();  // for all threads behind the barrier below
  works = works || units > 0;
  // A block that only samples waits for its own rows alone: no block would wait for it in other
  // rows.
#pragma unroll 1
  for (int r = 0; r < p.rows; ++r) {
    if (works || share_.Samples(r)) cares_ |= 1u << r;
  }
  if (cares_ == 0) return false;
  const int r = static_cast<int>(threadIdx.x);
  if (r < p.rows) {
    const CudaSegment segment = p.step.segments[r];
    tokens()[r] = segment.num_rows > 0 ? p.step.tokens[r] : -1;
    positions()[r] = p.step.positions[r];
    slots()[r] = segment.slot;
  }
  __syncthreads();
#pragma unroll 1
  for (int i = 0; i < p.rows; ++i) {
    if (tokens()[i] >= 0) began_ |= 1u << i;
  }
  alive_ = began_ & cares_;
  if (p.plan.states_stay) MoveStates</*kBack=*/false>();
  return true;
}

// Copies the states of the first step's rows between their slots and shared memory.
template <bool kBack>
__device__ void LatencyBlock::MoveStates() {
  const StateLayout& layout = p.model.attention.layout;
  const int s_floats = layout.features * layout.value_dim;
  __syncthreads();
  int unit = 0;
#pragma unroll 1
  for (int l = share_.stage; l < layout.layers; l += p.plan.stages) {
#pragma unroll 1
    for (int h = 0; h < layout.heads; ++h) {
      if (!share_.HasHead(l, h)) continue;
#pragma unroll 1
      for (int r = 0; r < p.rows; ++r) {
        if ((began_ >> r & 1u) == 0) continue;
        const HeadState kept = KeptState(p, shared_, unit, r);
        const HeadState slot = SlotState(p, l, h, slots()[r]);
        const HeadState to = kBack ? slot : kept, from = kBack ? kept : slot;
#pragma unroll 8
        for (int i = static_cast<int>(threadIdx.x); i < s_floats; i += kLatencyThreads) {
          to.s[i] = from.s[i];
        }
#pragma unroll 1
        for (int i = static_cast<int>(threadIdx.x); i < layout.features; i += kLatencyThreads) {
          to.z[i] = from.z[i];
        }
      }
      ++unit;
    }
  }
}

__device__ inline bool LatencyBlock::Begin(int step) {
  flag_ = p.first_flag + static_cast<uint32_t>(step);
  weights_ = reinterpret_cast<const char*>(shared_ + p.plan.weights);
  unit_ = 0;
  if (step == 0) return alive_ != 0;
  __syncthreads();
  const int r = static_cast<int>(threadIdx.x);
  bool arrived = true;
  if (r < p.rows && Alive(r)) {
    uint32_t token;
    arrived = Receive(p.exchange + p.plan.tokens_at + r, flag_ - 1, watch_, &token);
    tokens()[r] = static_cast<int32_t>(token);
    ++positions()[r];
  }
  if (!Arrived(arrived)) return false;
#pragma unroll 1
  for (int i = 0; i < p.rows; ++i) {
    if (Alive(i) && tokens()[i] < 0) alive_ &= ~(1u << i);
  }
  return alive_ != 0;
}

}  // namespace rivulet::kernels
