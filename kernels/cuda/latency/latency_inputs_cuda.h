// SPDX-License-Identifier: Apache-2.0
// The inputs of a block's products, from what others exchanged (latency_block_cuda.h). Included by
// latency_phases_cuda.h only.
#pragma once

#include "kernels/cuda/common/row_statistics_cuda.h"
#include "kernels/cuda/latency/latency_block_cuda.h"

namespace rivulet::kernels {

// x <- norm(x), by one warp; zero behind the row.
template <bool kF16, bool kStay>
__device__ void LatencyBlock<kF16, kStay>::Normalize(float* x, const float* weight,
                                                     const float* bias) const {
  const RowStatistics statistics = NormalizeStatistics(x, p.model.hidden, p.model.norm_eps);
#pragma unroll 2
  for (int i = LaneIndex(); i < p.plan.ld_x; i += kWarpLanes) {
    x[i] = i < p.model.hidden ? Normalized(x[i], statistics, __ldg(weight + i), __ldg(bias + i))
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
#pragma unroll 1
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
      const bool twice = last && p.model.final_norm.weight != nullptr;
#pragma unroll 1
      for (int turn = 0; turn < (twice ? 2 : 1); ++turn) {
        Normalize(x, turn == 0 ? norm.weight : p.model.final_norm.weight,
                  turn == 0 ? norm.bias : p.model.final_norm.bias);
      }
    }
    if constexpr (kF16) {
#pragma unroll 2
      for (int i = LaneIndex(); i < (hidden + 31) / 32 * 16; i += kWarpLanes) {
        A(r)
        [i] =
            PackHalves(2 * i < hidden ? x[2 * i] : 0.0f, 2 * i + 1 < hidden ? x[2 * i + 1] : 0.0f);
      }
    }
  }
  return Arrived(arrived);
}

// Two halves of a row of a product's input that is made of pieces of an odd `width`: word `i` of
// the exchange.
template <bool kF16, bool kStay>
__device__ void LatencyBlock<kF16, kStay>::PutHalves(int row, int i, uint32_t value,
                                                     int width) const {
  const int each = (width + 1) / 2, column = 2 * (i % each);
  auto* halves = reinterpret_cast<uint16_t*>(A(row)) + i / each * width + column;
  halves[0] = static_cast<uint16_t>(value);
  if (column + 1 < width) halves[1] = static_cast<uint16_t>(value >> 16);
}

// The rows of a product's input that others made; zero behind them. A warp a row, or several where
// there are fewer rows.
template <bool kF16, bool kStay>
__device__ bool LatencyBlock<kF16, kStay>::LoadInput(const uint64_t* from, int ld, int heads,
                                                     int width) {
  __syncthreads();
  const int parts = p.rows == 1 ? 4 : p.rows == 2 ? 2 : 1;
  const int k = heads * width, count = kF16 ? heads * ((width + 1) / 2) : k;
  const bool whole = !kF16 || heads == 1 || width % 2 == 0;  // words are words of the row
  bool arrived = true;
#pragma unroll 1
  for (int item = WarpIndex(); item < p.rows * parts; item += kLatencyWarps) {
    const int r = item / parts, part = item % parts;
    if (!Alive(r)) continue;
    const uint64_t* const words = from + r * ld;
    const int first = part * kWarpLanes + LaneIndex(), stride = parts * kWarpLanes;
    bool came;
    if (whole) {
      came = ReceivePairs(words, count, first, stride, flag_, watch_, [&](int i, uint32_t v) {
        A(r)[i] = v;
      });
    } else {  // seldom: slow, and short
      came = ReceivePairs<1>(words, count, first, stride, flag_, watch_,
                             [&](int i, uint32_t v) { PutHalves(r, i, v, width); });
    }
    arrived = came && arrived;
    if (part != 0) continue;
    if constexpr (kF16) {
      // An odd row's last half came with its word, unless pieces were put one by one.
      auto* halves = reinterpret_cast<uint16_t*>(A(r));
      const int begin = whole ? k + k % 2 : k;
      for (int i = begin + LaneIndex(); i < (k + 31) / 32 * 32; i += kWarpLanes) halves[i] = 0;
    } else {
      if (k + LaneIndex() < (k + 3) / 4 * 4) A(r)[k + LaneIndex()] = 0;
    }
  }
  return Arrived(arrived);
}

}  // namespace rivulet::kernels
