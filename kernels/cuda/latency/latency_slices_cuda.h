// SPDX-License-Identifier: Apache-2.0
// The heads and columns that each block computes (latency_cuda.h), for the host, which counts
// bytes, and for the block, which finds its weights. Included by latency_*.cu only.
#pragma once

#include "kernels/cuda/latency/latency_cuda.h"

namespace rivulet::kernels {

// Packed weights come in tiles over all of k: 8 columns of F16, or 32 columns of a float32 head.
__host__ __device__ inline int TileColumns(WeightType type) {
  return type == WeightType::kF16 ? 8 : 32;
}
__host__ __device__ inline size_t TileBytes(WeightType type, int k) {
  const int steps = type == WeightType::kF16 ? (k + 31) / 32 : (k + 3) / 4;
  return static_cast<size_t>(steps) * 512;
}
__host__ __device__ inline int NumTiles(WeightType type, int n) {
  return (n + TileColumns(type) - 1) / TileColumns(type);
}

// Up to four runs of neighbouring tiles of one matrix.
struct Tiles {
  int first[4] = {}, count[4] = {};
  __host__ __device__ int all() const { return count[0] + count[1] + count[2] + count[3]; }
  // The j-th of these tiles.
  __host__ __device__ int At(int j) const {
    int tile = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (j >= 0 && j < count[i]) tile = first[i] + j;
      j -= count[i];
    }
    return tile;
  }
};

// Columns of q, k, v and gate of neighbouring heads: ranges of the layer's product, and the places
// that these columns go to.
struct HeadColumns {
  int begin[4], size[4], to[4];
  __host__ __device__ HeadColumns(const CudaAttentionArgs& p, int head, int count = 1) {
    const int key = p.map.key_dim, value = p.layout.value_dim, heads = p.layout.heads;
    const int sizes[4] = {key, key, value, p.gated ? 1 : 0};
    int section = 0, at = 0;
    for (int i = 0; i < 4; ++i) {
      size[i] = count * sizes[i];
      begin[i] = section + head * sizes[i];
      to[i] = at;
      section += heads * sizes[i];
      at += size[i];
    }
  }
  __host__ __device__ Tiles Covering() const {
    const int columns = TileColumns(WeightType::kF16);
    Tiles tiles;
    int next = 0;  // a tile that two ranges share is listed once
    for (int i = 0; i < 4; ++i) {
      if (size[i] == 0) continue;
      const int first = begin[i] / columns, end = (begin[i] + size[i] - 1) / columns + 1;
      tiles.first[i] = first > next ? first : next;
      tiles.count[i] = end > tiles.first[i] ? end - tiles.first[i] : 0;
      next = end > next ? end : next;
    }
    return tiles;
  }
};

// One block's share.
struct BlockShare {
  const StepModel& model;
  const LatencyPlan& plan;
  int stage, index;  // in the stage

  __host__ __device__ BlockShare(const StepModel& m, const LatencyPlan& p, int block)
      : model(m), plan(p), stage(block / p.stage_blocks), index(block % p.stage_blocks) {}

  // Share number `part` of the tiles of n columns.
  __host__ __device__ Tiles Slice(WeightType type, int n, int part) const {
    const int tiles = NumTiles(type, n), parts = plan.stage_blocks;
    Tiles slice;
    slice.first[0] = tiles * part / parts;
    slice.count[0] = tiles * (part + 1) / parts - slice.first[0];
    return slice;
  }
  __host__ __device__ Tiles Columns(int n) const { return Slice(WeightType::kF16, n, index); }
  __host__ __device__ bool HasHead(int layer, int head) const {
    const int heads = model.attention.layout.heads;
    return (layer / plan.stages * heads + head) % plan.stage_blocks == index;
  }
  __host__ __device__ bool IsLast() const {
    return stage == (model.attention.layout.layers - 1) % plan.stages;
  }
  // From the last block of the stage on, because the last blocks have fewer heads.
  __host__ __device__ bool Samples(int row) const {
    return IsLast() && plan.stage_blocks - 1 - row % plan.stage_blocks == index;
  }
  __host__ __device__ bool LocalHead() const { return model.head.n <= kLocalHead; }
  // Tiles of the model's head; with a local head all tiles or none.
  __host__ __device__ Tiles HeadTiles(int rows) const {
    Tiles tiles;
    if (!IsLast()) return tiles;
    if (!LocalHead()) return Slice(WeightType::kF32, model.head.n, plan.stage_blocks - 1 - index);
#pragma unroll 1
    for (int r = 0; r < rows; ++r) {
      if (Samples(r)) tiles.count[0] = NumTiles(WeightType::kF32, model.head.n);
    }
    return tiles;
  }

  // Calls f(matrix, tiles) for all weights of the block, in the order in which a step needs them.
  // `layer_of(l)`: the StepLayer. Returns the number of the block's (layer, head) units.
#pragma nv_exec_check_disable
  template <class LayerOf, class F>
  __host__ __device__ int ForEachSlice(int rows, const LayerOf& layer_of, const F& f) const {
    const StateLayout& layout = model.attention.layout;
    int units = 0;
#pragma unroll 1
    for (int l = stage; l < layout.layers; l += plan.stages) {
      const StepLayer& layer = layer_of(l);
#pragma unroll 1
      for (int h = 0; h < layout.heads; ++h) {
        if (!HasHead(l, h)) continue;
        ++units;
        f(layer.qkv, HeadColumns(model.attention, h).Covering());
      }
      f(layer.out, Columns(model.hidden));
      f(layer.ffn1, Columns(model.ffn));
      f(layer.ffn2, Columns(model.hidden));
    }
    f(model.head, HeadTiles(rows));
    return units;
  }
};

}  // namespace rivulet::kernels
