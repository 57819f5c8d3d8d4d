// SPDX-License-Identifier: Apache-2.0
// Who computes what within a block of Fused() (fused_cuda.h): tiles of products and (row, head)
// units of the attention by warp, the same for the host that lists pieces and the kernel that uses
// them up. Included by fused_*.cu only.
#pragma once

#include "kernels/fused_cuda.h"
#include "kernels/latency_slices_cuda.h"

namespace rivulet::kernels {

inline constexpr int kGroupTiles = 4;  // tiles that a warp multiplies side by side, at most
inline constexpr int kPieceSteps = 2;  // of 32 k
inline constexpr int kPieceFloats = 1024;

// Neighbouring tiles, for one warp.
struct TileRun {
  int first, count;
};

// The tiles of a product, dealt out in groups: warp w takes groups w, w + kFusedWarps, ...
struct TileGroups {
  Tiles tiles;
  int size = 0, count = 0;

  __host__ __device__ explicit TileGroups(const Tiles& all) : tiles(all) {
    // The size at which the busiest warp has least to do; of equals the largest, for each group
    // reads its rows once.
    int least = 0;
    for (int s = kGroupTiles; s > 0; --s) {
      const int groups = Groups(s), most = (groups + kFusedWarps - 1) / kFusedWarps * s;
      if (size == 0 || most < least) size = s, count = groups, least = most;
    }
  }
  __host__ __device__ TileRun At(int g) const {
    TileRun run = {0, 0};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int groups = (tiles.count[i] + size - 1) / size, first = g * size;
      if (g >= 0 && g < groups) {
        run = {tiles.first[i] + first,
               tiles.count[i] - first < size ? tiles.count[i] - first : size};
      }
      g -= groups;
    }
    return run;
  }

 private:
  __host__ __device__ int Groups(int s) const {
    int groups = 0;
    for (int i = 0; i < 4; ++i) groups += (tiles.count[i] + s - 1) / s;
    return groups;
  }
};
__host__ __device__ inline TileGroups AllTiles(const CudaMatrix& w) {
  Tiles tiles;
  tiles.count[0] = NumTiles(w.type, w.n);
  return TileGroups(tiles);
}

// The columns of q, k, v and gates of a round of heads, and where they go: values first, which are
// read in vectors.
struct RoundColumns : HeadColumns {
  __host__ __device__ RoundColumns(const CudaAttentionArgs& p, int first_head, int heads)
      : HeadColumns(p, first_head, heads) {
    to[2] = 0;
    to[0] = size[2];
    to[1] = to[0] + size[0];
    to[3] = to[1] + size[1];
  }
};

// The (row, head) units of a round, by warp: rows fastest, unit w, w + kFusedWarps, ... for warp w.
struct Unit {
  int row, head;  // of the block, of the round
};
__host__ __device__ inline Unit UnitAt(const FusedPlan& plan, int unit) {
  return {unit % plan.rows, unit / plan.rows};
}
__host__ __device__ inline int RoundUnits(const FusedPlan& plan) {
  return plan.rows * plan.round_heads;
}

}  // namespace rivulet::kernels
