// SPDX-License-Identifier: Apache-2.0
// Where the results of Latency()'s phases go: words of the exchange, shared memory, records.
// Included by latency_*.cu only.
#pragma once

#include "kernels/embed_row_cuda.h"
#include "kernels/latency_exchange_cuda.h"
#include "kernels/latency_product_cuda.h"
#include "kernels/sample_row_cuda.h"

namespace rivulet::kernels {

static_assert(kLatencyThreads == kRowThreads);

// The four arrows of a layer, in the exchange.
struct LayerWords {
  uint64_t *attention, *middle, *ffn, *out;
  __device__ LayerWords(const LatencyArgs& p, int layer) {
    const auto after = [&](uint64_t* words, int ld) { return words + p.plan.rows * ld; };
    attention = p.exchange + static_cast<size_t>(layer) * p.plan.layer_words;
    middle = after(attention, p.plan.ld_attention);
    ffn = after(middle, p.plan.ld_y);
    out = after(ffn, p.plan.ld_ffn);
  }
};

// Takes a product's sums: v + residual to the others.
struct GiveSum {
  uint64_t* to;
  const float* x;
  int ld, ld_x, n;
  uint32_t flag, alive;
  __device__ void operator()(int row, int column, float v) const {
    if ((alive >> row & 1u) == 0) return;
    Send(to + row * ld + column, __float_as_uint(v + x[row * ld_x + column]), flag);
  }
  __device__ void operator()(int row, int column, float v0, float v1) const {
    if (column + 1 >= n) return (*this)(row, column, v0);
    if ((alive >> row & 1u) == 0) return;
    const float* residual = x + row * ld_x + column;
    SendTwo(to + row * ld + column, __float_as_uint(v0 + residual[0]),
            __float_as_uint(v1 + residual[1]), flag);
  }
};

// Activates; F16 goes two values a word.
struct GiveActivated {
  uint64_t* to;
  int ld, n;
  Epilogue epilogue;
  uint32_t flag, alive;
  __device__ void operator()(int row, int column, float v) const {
    if ((alive >> row & 1u) == 0) return;
    Send(to + row * ld + column, __float_as_uint(Activated(epilogue, v)), flag);
  }
  __device__ void operator()(int row, int column, float v0, float v1) const {
    if ((alive >> row & 1u) == 0) return;
    const float second = column + 1 < n ? Activated(epilogue, v1) : 0.0f;
    Send(to + row * ld + column / 2, PackHalves(Activated(epilogue, v0), second), flag);
  }
};

// Apart from the rest, so that its registers are: what a step does once.
__device__ __noinline__ inline void SampleAndTell(const LatencyArgs& p, int row,
                                                  const float* outputs, int ld, uint32_t flag) {
  CudaSampleArgs args = p.sample;
  args.outputs = outputs;
  args.ld_outputs = ld;
  args.work = p.step.outputs;
  args.fed = p.step.tokens;
  args.next = p.step;
  uint64_t* const to = p.exchange + p.plan.tokens_at + row;
  SampleRow(args, row, *static_cast<RowShared*>(SharedMemory()), [&](bool goes_on, int32_t token) {
    Send(to, static_cast<uint32_t>(goes_on ? token : -1), flag);
  });
}

// Copies weights to `to`, tile behind tile; returns the place behind them.
__device__ inline char* KeepTiles(const CudaMatrix& w, const Tiles& tiles, char* to) {
  const size_t bytes = TileBytes(w.type, w.k);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto* from = reinterpret_cast<const uint4*>(static_cast<const char*>(w.packed) +
                                                      static_cast<size_t>(tiles.first[i]) * bytes);
    const int vectors = static_cast<int>(static_cast<size_t>(tiles.count[i]) * bytes / 16);
#pragma unroll 8
    for (int j = static_cast<int>(threadIdx.x); j < vectors; j += kLatencyThreads) {
      reinterpret_cast<uint4*>(to)[j] = __ldg(from + j);
    }
    to += static_cast<size_t>(vectors) * 16;
  }
  return to;
}

}  // namespace rivulet::kernels
