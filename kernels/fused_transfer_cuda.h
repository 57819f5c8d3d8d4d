// SPDX-License-Identifier: Apache-2.0
// Weights of Fused() in a cluster: read once for all of its blocks. Included by fused_*cuda.cu
// only.
//
// All blocks use up the same lists at about the same time. Warp w of every block sends its share of
// a piece (every so-manieth tile) to the rings of the warps w of all blocks, cluster_cuda.h says
// how. It does so one piece after its own slot became free: by then the slots of the others are
// free, too, so that it hardly waits. And nobody waits for ever: each wait is for a warp of the
// same number at an earlier piece, or for a warp of the same block in an earlier phase.
#pragma once

#include "kernels/cluster_cuda.h"
#include "kernels/fused_pieces_cuda.h"

namespace rivulet::kernels {

// Of one warp; all of its lanes call.
class WeightTransfer {
 public:
  // `ring`: the warp's.
  __device__ WeightTransfer(const FusedArgs& p, float* shared, char* ring)
      : p_(p),
        ring_(ring),
        barriers_(reinterpret_cast<uint64_t*>(shared + p.plan.barriers) +
                  WarpIndex() * 2 * kFusedMaxDepth) {}

  // All threads of all blocks.
  __device__ void Begin() {
    if (LaneIndex() < p_.plan.depth) {
      InitBarrier(Full(LaneIndex()), 1);
      InitBarrier(Free(LaneIndex()), static_cast<unsigned>(p_.cluster));
    }
    ClusterBarrier();
  }
  // The slot at `place` will hold a state: this lane writes there.
  __device__ void HoldState(int place) { held_state_ |= 1u << place; }

  // The slot at `place` is read and waits for `piece`, the `turn`-th of the list.
  __device__ void Expect(const FusedPiece& piece, int place, int turn) {
    if ((held_state_ >> place & 1u) != 0) BeforeBulkCopies();
    held_state_ &= ~(1u << place);
    __syncwarp();  // all lanes have read
    if (LaneIndex() == 0) {
      ExpectBytes(Full(place), static_cast<unsigned>(piece.tiles) * TileOf(piece));
      for (int r = 0; r < p_.cluster; ++r) ArriveAt(Free(place), static_cast<unsigned>(r));
    }
    piece_ = piece;
    place_ = place;
    turn_ = turn;
  }
  // This block's share of the piece that was expected last, once.
  __device__ void Send() {
    if (piece_.row != FusedPiece::kWeights) return;
    if (LaneIndex() == 0) {
      AwaitPhase(Free(place_), free_parity_ >> place_ & 1u);
      const auto* from = reinterpret_cast<const char*>(piece_.at);
      char* to = ring_ + place_ * p_.plan.slot_bytes;
      for (int j = 0; j < piece_.tiles; ++j) {
        if ((j + turn_) % p_.cluster != static_cast<int>(ClusterRank())) continue;
        CopyToBlocks(to + j * kPieceSteps * static_cast<int>(kStepBytes), from + j * piece_.stride,
                     TileOf(piece_), Full(place_), static_cast<unsigned>(p_.cluster));
      }
    }
    free_parity_ ^= 1u << place_;
    piece_.row = FusedPiece::kIdle;
  }
  // Until the shares of all blocks are in the slot at `place`.
  __device__ void Await(int place) {
    AwaitPhase(Full(place), full_parity_ >> place & 1u);
    full_parity_ ^= 1u << place;
  }

 private:
  // The barriers of a slot: its weights are here; it is free in all blocks.
  __device__ uint64_t* Full(int place) const { return barriers_ + place; }
  __device__ uint64_t* Free(int place) const { return barriers_ + kFusedMaxDepth + place; }
  // Bytes of one tile.
  __device__ static unsigned TileOf(const FusedPiece& piece) { return piece.steps * kStepBytes; }

  const FusedArgs& p_;
  char* const ring_;
  uint64_t* const barriers_;
  // By slot: the parity of the next phase, and whether a state is or was there.
  uint32_t full_parity_ = 0, free_parity_ = 0, held_state_ = 0;
  // What is yet to be sent.
  FusedPiece piece_ = {0, 0, FusedPiece::kIdle, 0, 0};
  int place_ = 0, turn_ = 0;
};

}  // namespace rivulet::kernels
