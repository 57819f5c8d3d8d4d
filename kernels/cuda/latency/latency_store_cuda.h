// SPDX-License-Identifier: Apache-2.0
// Where the results of Latency()'s phases go: words of the exchange, shared memory, records.
// Included by latency_*.cu only.
#pragma once

#include "kernels/cuda/common/async_copy_cuda.h"
#include "kernels/cuda/latency/latency_exchange_cuda.h"
#include "kernels/cuda/latency/latency_product_cuda.h"
#include "kernels/cuda/rows/embed_row_cuda.h"
#include "kernels/cuda/sample/sample_row_cuda.h"

namespace rivulet::kernels {

static_assert(kLatencyThreads <= kMostRowThreads);

// The words of a layer's four exchanges.
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

// Stores the sums of a layer's products. One type for all products, so that their code exists once.
struct StoreSums {
  enum class To { kHead, kResidual, kActivation };
  To to;
  const HeadColumns* columns;  // kHead: q, k, v and gate to shared memory ...
  float* qkv;                  // ... [rows][ld]
  uint64_t* words;             // else: to other blocks, [rows][ld] words
  const float* x;              // kResidual: the addend, [rows][ld_x]
  int ld, ld_x, n;
  Epilogue epilogue;
  uint32_t flag, alive;

  __device__ __forceinline__ void ToHead(int row, int column, float v) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = column - columns->begin[i];
      if (at >= 0 && at < columns->size[i]) qkv[row * ld + columns->to[i] + at] = v;
    }
  }
  // The value for the other blocks.
  __device__ __forceinline__ float Result(int row, int column, float v) const {
    if (to == To::kActivation) return Activated(epilogue, v);
    return v + x[row * ld_x + column];
  }
  // Activations are sent in F16, two per word.
  __device__ __forceinline__ void operator()(int row, int column, float v0, float v1) const {
    if (to == To::kHead) {
      ToHead(row, column, v0);
      return ToHead(row, column + 1, v1);
    }
    if ((alive >> row & 1u) == 0) return;
    const bool both = column + 1 < n;
    const float first = Result(row, column, v0), second = both ? Result(row, column + 1, v1) : 0.0f;
    if (to == To::kActivation) {
      Send(words + row * ld + column / 2, PackHalves(first, second), flag);
    } else if (both) {
      SendTwo(words + row * ld + column, __float_as_uint(first), __float_as_uint(second), flag);
    } else {
      Send(words + row * ld + column, __float_as_uint(first), flag);
    }
  }
};

// Not inlined, so that its registers do not add to those of the caller. `outputs`: of this row.
__device__ __noinline__ inline void SampleAndSend(const LatencyArgs& p, int row,
                                                  const float* outputs, uint32_t flag) {
  CudaSampleArgs args = p.sample;
  args.outputs = outputs;
  args.ld_outputs = 0;
  args.work = p.step.outputs;
  args.fed = p.step.tokens;
  args.next = p.step;
  uint64_t* const to = p.exchange + p.plan.tokens_at + row;
  // Few loads in flight, for short code: these vocabularies are small.
  SampleRow<1>(args, row, [&](bool goes_on, int32_t token) {
    Send(to, static_cast<uint32_t>(goes_on ? token : -1), flag);
  });
}

// Begins to copy weights to `to`, tile behind tile; returns the address behind the last tile.
__device__ inline char* KeepTiles(const CudaMatrix& w, const Tiles& tiles, char* to) {
  const size_t bytes = TileBytes(w.type, w.k);
#pragma unroll 1
  for (int j = 0; j < tiles.all(); ++j, to += bytes) {
    const char* from =
        static_cast<const char*>(w.packed) + static_cast<size_t>(tiles.At(j)) * bytes;
#pragma unroll 1
    for (size_t at = size_t{16} * threadIdx.x; at < bytes; at += size_t{16} * kLatencyThreads) {
      CopyAsync<16>(to + at, from + at);
    }
  }
  return to;
}

}  // namespace rivulet::kernels
