// SPDX-License-Identifier: Apache-2.0
// The ring of a warp of Fused() (fused_cuda.h): pieces of weights and states on their way, in the
// order of their use. Included by fused_*cuda.cu only.
//
// A piece is 8 x 16 bytes a lane, and z. The lane that copies them is the one that uses them, and
// writes S and z back: so a piece needs no barrier, and a state that is read again a step later was
// written before by the same lane.
#pragma once

#include <type_traits>

#include "kernels/fused_pieces_cuda.h"
#include "kernels/fused_transfer_cuda.h"

namespace rivulet::kernels {

// kClustered: weights come by WeightTransfer.
template <class Order, bool kClustered>
class PieceStream {
 public:
  // `slots`: [plan.rows] of the block's rows, in shared memory.
  __device__ PieceStream(const FusedArgs& p, float* shared, const int32_t* slots)
      : p_(p),
        slots_(slots),
        ring_(reinterpret_cast<char*>(shared + p.plan.ring) +
              WarpIndex() * p.plan.depth * p.plan.slot_bytes),
        first_(p.pieces + p.plan.begin[WarpIndex()]),
        count_(p.plan.begin[WarpIndex() + 1] - p.plan.begin[WarpIndex()]),
        left_(count_ * p.steps),
        transfer_(p, shared, ring_) {
    if (count_ > 0) ahead_ = Listed(0);
  }

  // Fills the ring. `alive`: rows whose states will be used. In a cluster all threads of all blocks
  // call it.
  __device__ void Begin(uint32_t alive) {
    alive_ = alive;
    if constexpr (kClustered) transfer_.Begin();
    for (int i = 0; i < p_.plan.depth; ++i) Bring();
  }
  // From now on states of other rows are not read.
  __device__ void SetAlive(uint32_t alive) { alive_ = alive; }

  // Waits for the next piece: its lane's vectors lie kWarpLanes apart.
  __device__ const uint4* TakeWeights() {
    if constexpr (kClustered) {
      transfer_.Await(place_);
    } else {
      WaitForAllBut(p_.plan.depth - 1);
    }
    return reinterpret_cast<const uint4*>(Slot(place_)) + LaneIndex();
  }
  __device__ const uint4* TakeState() {
    WaitForAllBut(p_.plan.depth - 1);
    return reinterpret_cast<const uint4*>(Slot(place_)) + LaneIndex();
  }
  // z of a piece that was taken: the lane's values lie kWarpLanes apart.
  __device__ const float* TakenZ() const {
    return reinterpret_cast<const float*>(Slot(place_) + kPieceFloats * sizeof(float)) +
           LaneIndex();
  }
  // The taken piece is in registers: brings another into its place.
  __device__ void Done() {
    Bring();
    ++taken_;
  }
  // Passes by a state that nobody needs.
  __device__ void Skip() {
    WaitForAllBut(p_.plan.depth - 1);
    Done();
  }
  // Passes by the idle pieces at the end of a step's list.
  __device__ void EndStep() {
    while (taken_ < count_) Skip();
    taken_ = 0;
  }
  // Nothing is on its way any more, in a cluster to no block of it.
  __device__ void End() {
    WaitForCopies<0>();
    if constexpr (kClustered) ClusterBarrier();
  }

 private:
  struct None {
    __device__ None(const FusedArgs&, float*, char*) {}
  };
  __device__ char* Slot(int place) const { return ring_ + place * p_.plan.slot_bytes; }
  __device__ FusedPiece Listed(int i) const {
    const uint4 v = __ldg(reinterpret_cast<const uint4*>(first_ + i));
    FusedPiece piece;
    piece.at = v.x | static_cast<uint64_t>(v.y) << 32;
    piece.stride = v.z;
    piece.row = static_cast<int16_t>(v.w);
    piece.tiles = static_cast<uint8_t>(v.w >> 16);
    piece.steps = static_cast<uint8_t>(v.w >> 24);
    return piece;
  }

  // Into the oldest slot. Without anything left it closes an empty group, so that counts hold.
  __device__ void Bring() {
    if constexpr (kClustered) transfer_.Send();
    if (left_ > 0) {
      --left_;
      const FusedPiece piece = ahead_;
      if (++next_ == count_) next_ = 0;
      ahead_ = Listed(next_);
      if (piece.row == FusedPiece::kWeights) {
        if constexpr (kClustered) {
          transfer_.Expect(piece, place_, next_);
        } else {
          BringWeights(piece);
        }
      } else if (piece.row >= 0 && (alive_ >> piece.row & 1u) != 0) {
        BringState(piece);
      }
    }
    CommitCopies();
    if (++place_ == p_.plan.depth) place_ = 0;
  }
  // Vector 2 j + s: step s of tile j.
  __device__ void BringWeights(const FusedPiece& piece) {
    const char* from = reinterpret_cast<const char*>(piece.at) + LaneIndex() * sizeof(uint4);
    uint4* to = reinterpret_cast<uint4*>(Slot(place_)) + LaneIndex();
#pragma unroll
    for (int j = 0; j < kGroupTiles; ++j) {
      if (j >= piece.tiles) break;
#pragma unroll
      for (int s = 0; s < kPieceSteps; ++s) {
        if (s >= piece.steps) break;
        CopyAsync<16>(to + (j * kPieceSteps + s) * kWarpLanes,
                      from + j * piece.stride + s * kWarpLanes * sizeof(uint4));
      }
    }
  }
  __device__ void BringState(const FusedPiece& piece) {
    if constexpr (kClustered) transfer_.HoldState(place_);
    using Shape = PieceShape<Order>;
    const CudaAttentionArgs& attention = p_.model.attention;
    const float* slot = attention.states +
                        static_cast<size_t>(slots_[piece.row]) * attention.layout.floats_per_slot();
    const float* from = slot + piece.at / sizeof(float) + Shape::LaneOffset();
    uint4* to = reinterpret_cast<uint4*>(Slot(place_)) + LaneIndex();
#pragma unroll
    for (int i = 0; i < Shape::kDown; ++i) {
#pragma unroll
      for (int b = 0; b < Shape::kBlocks; ++b) {
        CopyAsync<16>(to + (i * Shape::kBlocks + b) * kWarpLanes, from + Shape::Offset(i, b));
      }
    }
    if (piece.stride == FusedPiece::kNoZ) return;
    const float* z = slot + piece.stride / sizeof(float) + LaneIndex();
    float* z_to =
        reinterpret_cast<float*>(Slot(place_) + kPieceFloats * sizeof(float)) + LaneIndex();
#pragma unroll
    for (int i = 0; i < Order::kZ; ++i) CopyAsync<4>(z_to + i * kWarpLanes, z + i * kWarpLanes);
  }

  const FusedArgs& p_;
  const int32_t* const slots_;
  char* const ring_;  // the warp's
  const FusedPiece* const first_;
  const int count_;  // pieces of a step
  int left_;         // to be brought, of all steps
  int next_ = 0;     // the listed piece that is `ahead_`
  int place_ = 0;    // the slot of the next to be taken, and of the next to be brought
  int taken_ = 0;    // in this step
  uint32_t alive_ = 0;
  FusedPiece ahead_;
  std::conditional_t<kClustered, WeightTransfer, None> transfer_;
};

}  // namespace rivulet::kernels
