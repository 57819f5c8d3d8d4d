// SPDX-License-Identifier: Apache-2.0
// The phases of a step of one block (latency_block_cuda.h). Included by latency_cuda.cu only.
#pragma once

#include "kernels/latency_block_cuda.h"
#include "kernels/row_statistics_cuda.h"

namespace rivulet::kernels {

// x <- norm(x), by one warp; zero behind the row.
template <bool kF16, bool kStay>
__device__ void LatencyBlock<kF16, kStay>::Normalize(float* x, const StepNorm& norm) const {
  const RowStatistics statistics = NormalizeStatistics(x, p.model.hidden, p.model.norm_eps);
  for (int i = LaneIndex(); i < p.plan.ld_x; i += kWarpLanes) {
    x[i] = i < p.model.hidden
               ? Normalized(x[i], statistics, __ldg(norm.weight + i), __ldg(norm.bias + i))
               : 0.0f;
  }
  __syncwarp();
}

// x of `rows`: from the exchange and normalised (`last`: also by the final norm, if there is one),
// or, without `from`, the embedding; and as the input of a product. One warp a row.
template <bool kF16, bool kStay>
__device__ bool LatencyBlock<kF16, kStay>::LoadRows(const uint64_t* from, const StepNorm& norm,
                                                    bool last, uint32_t rows) {
  __syncthreads();
  const int hidden = p.model.hidden;
  bool arrived = true;
  for (int r = WarpIndex(); r < p.rows; r += kLatencyWarps) {
    if ((rows >> r & 1u) == 0) continue;
    float* x = X(r);
    if (from == nullptr) {
      EmbedRow(p.model.embed, tokens()[r], positions()[r], x, p.plan.ld_x);
      __syncwarp();
    } else {
      arrived = ReceivePairs(from + r * p.plan.ld_y, hidden, LaneIndex(), kWarpLanes, flag_, watch_,
                             [&](int i, uint32_t v) { x[i] = __uint_as_float(v); }) &&
                arrived;
      __syncwarp();
      Normalize(x, norm);
      if (last && p.model.final_norm.weight != nullptr) Normalize(x, p.model.final_norm);
    }
    if constexpr (kF16) {
      for (int i = LaneIndex(); i < (hidden + 31) / 32 * 16; i += kWarpLanes) {
        A(r)
        [i] =
            PackHalves(2 * i < hidden ? x[2 * i] : 0.0f, 2 * i + 1 < hidden ? x[2 * i + 1] : 0.0f);
      }
    }
  }
  return Arrived(arrived);
}

// Word `i` of a row of a product's input, made of `heads` pieces of `width` columns.
template <bool kF16, bool kStay>
__device__ void LatencyBlock<kF16, kStay>::Put(int row, int i, uint32_t value, int heads,
                                               int width) const {
  if (!kF16 || heads == 1 || width % 2 == 0) {
    A(row)[i] = value;
  } else {
    const int each = (width + 1) / 2, column = 2 * (i % each);
    auto* halves = reinterpret_cast<uint16_t*>(A(row)) + i / each * width + column;
    halves[0] = static_cast<uint16_t>(value);
    if (column + 1 < width) halves[1] = static_cast<uint16_t>(value >> 16);
  }
}

// The rows of a product's input that others made; zero behind them. A warp a row, or several where
// there are fewer rows.
template <bool kF16, bool kStay>
__device__ bool LatencyBlock<kF16, kStay>::LoadInput(const uint64_t* from, int ld, int heads,
                                                     int width) {
  __syncthreads();
  const int parts = p.rows == 1 ? 4 : p.rows == 2 ? 2 : 1;
  const int k = heads * width, count = kF16 ? heads * ((width + 1) / 2) : k;
  bool arrived = true;
  for (int item = WarpIndex(); item < p.rows * parts; item += kLatencyWarps) {
    const int r = item / parts, part = item % parts;
    if (!Alive(r)) continue;
    arrived =
        ReceivePairs(from + r * ld, count, part * kWarpLanes + LaneIndex(), parts * kWarpLanes,
                     flag_, watch_, [&](int i, uint32_t v) { Put(r, i, v, heads, width); }) &&
        arrived;
    if (part != 0) continue;
    if constexpr (kF16) {
      // An odd row's last half came with its word, unless pieces were put one by one.
      auto* halves = reinterpret_cast<uint16_t*>(A(r));
      const int begin = heads == 1 || width % 2 == 0 ? k + k % 2 : k;
      for (int i = begin + LaneIndex(); i < (k + 31) / 32 * 32; i += kWarpLanes) halves[i] = 0;
    } else {
      if (k + LaneIndex() < (k + 3) / 4 * 4) A(r)[k + LaneIndex()] = 0;
    }
  }
  return Arrived(arrived);
}

// Attention of the block's heads in a layer.
template <bool kF16, bool kStay>
__device__ void LatencyBlock<kF16, kStay>::Heads(const StepLayer& layer, int index,
                                                 const LayerWords& words) {
  const CudaAttentionArgs& attention = p.model.attention;
  for (int h = 0; h < attention.layout.heads; ++h) {
    if (!share_.HasHead(index, h)) continue;
    const HeadColumns columns(attention, h);
    MultiplyX(layer.qkv, columns.Covering(p.model.type),
              GiveHead{columns, shared_ + p.plan.qkv, p.plan.ld_qkv});
    __syncthreads();
    AttendHead(p, shared_, layer.omega, index, h, unit_, slots(), alive_);
    SendHead<kF16>(p, shared_, h, words.attention, flag_, alive_);
    ++unit_;
  }
}

template <bool kF16, bool kStay>
__device__ bool LatencyBlock<kF16, kStay>::Layer(int index) {
  const StepLayer& layer = p.model.layers[index];
  const LayerWords words(p, index);
  const StateLayout& layout = p.model.attention.layout;
  bool has_head = false;
  for (int h = 0; h < layout.heads; ++h) has_head = has_head || share_.HasHead(index, h);
  const Tiles hidden = share_.Columns(p.model.hidden), ffn = share_.Columns(p.model.ffn);
  if (has_head || hidden.all() > 0) {
    const uint64_t* from = index == 0 ? nullptr : LayerWords(p, index - 1).out;
    const StepNorm norm = index == 0 ? StepNorm() : p.model.layers[index - 1].norm2;
    if (!LoadRows(from, norm, /*last=*/false, alive_)) return false;
    Heads(layer, index, words);
  }
  if (hidden.all() > 0) {
    if (!LoadInput(words.attention, p.plan.ld_attention, layout.heads, layout.value_dim))
      return false;
    MultiplyA(layer.out, hidden,
              GiveSum{words.middle, X(0), p.plan.ld_y, p.plan.ld_x, layer.out.n, flag_, alive_});
  }
  if (hidden.all() + ffn.all() == 0) return true;
  if (!LoadRows(words.middle, layer.norm1, /*last=*/false, alive_)) return false;
  MultiplyX(
      layer.ffn1, ffn,
      GiveActivated{words.ffn, p.plan.ld_ffn, layer.ffn1.n, p.model.activation, flag_, alive_});
  if (hidden.all() == 0) return true;
  if (!LoadInput(words.ffn, p.plan.ld_ffn, 1, p.model.ffn)) return false;
  MultiplyA(layer.ffn2, hidden,
            GiveSum{words.out, X(0), p.plan.ld_y, p.plan.ld_x, layer.ffn2.n, flag_, alive_});
  return true;
}

template <bool kF16, bool kStay>
__device__ bool LatencyBlock<kF16, kStay>::Head() {
  if (!share_.IsLast()) return true;
  const int last = p.model.attention.layout.layers - 1;
  const StepNorm norm = p.model.layers[last].norm2;
  const uint64_t* from = LayerWords(p, last).out;
  return share_.LocalHead() ? LocalHead(norm, from) : SharedHead(norm, from);
}

// Few outputs: the block that samples a row computes them all.
template <bool kF16, bool kStay>
__device__ bool LatencyBlock<kF16, kStay>::LocalHead(const StepNorm& norm, const uint64_t* from) {
  const CudaMatrix& head = p.model.head;
  const TileSource<kStay> source = Take(head, share_.HeadTiles(p.plan.rows));
  float* outputs = shared_ + p.plan.outputs;
  for (int r = 0; r < p.rows; ++r) {
    if (!Alive(r) || !share_.Samples(r)) continue;
    if (!LoadRows(from, norm, /*last=*/true, 1u << r)) return false;
    MultiplyF32(source, X(r), p.plan.ld_x, 1,
                [&](int, int column, float v) { outputs[column] = v; });
    __syncthreads();
    SampleAndTell(p, r, outputs, 0, flag_);
  }
  return true;
}

// Many: the blocks of the stage share the columns, and those that sample wait for them.
template <bool kF16, bool kStay>
__device__ bool LatencyBlock<kF16, kStay>::SharedHead(const StepNorm& norm, const uint64_t* from) {
  const CudaMatrix& head = p.model.head;
  const Tiles tiles = share_.HeadTiles(p.plan.rows);
  uint64_t* const words = p.exchange + p.plan.outputs_at;
  const int ld = p.plan.ld_outputs;
  if (tiles.all() > 0) {
    if (!LoadRows(from, norm, /*last=*/true, alive_)) return false;
    MultiplyF32(Take(head, tiles), X(0), p.plan.ld_x, p.rows, [&](int row, int column, float v) {
      if (Alive(row)) Send(words + row * ld + column, __float_as_uint(v), flag_);
    });
  }
  for (int r = 0; r < p.rows; ++r) {
    if (!Alive(r) || !share_.Samples(r)) continue;
    float* outputs = const_cast<float*>(p.sample.outputs) + At(r, p.sample.ld_outputs);
    __syncthreads();
    const bool arrived =
        ReceivePairs(words + r * ld, head.n, static_cast<int>(threadIdx.x), kLatencyThreads, flag_,
                     watch_, [&](int i, uint32_t v) { outputs[i] = __uint_as_float(v); });
    if (!Arrived(arrived)) return false;
    SampleAndTell(p, r, p.sample.outputs, p.sample.ld_outputs, flag_);
  }
  return true;
}

}  // namespace rivulet::kernels
