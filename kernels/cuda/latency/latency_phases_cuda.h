// SPDX-License-Identifier: Apache-2.0
// The phases of a step of one block (latency_block_cuda.h). Included by latency_cuda.cu only.
#pragma once

#include "kernels/cuda/latency/latency_inputs_cuda.h"

namespace rivulet::kernels {

// Where the sums of phase 0 .. 3 of a layer go: products to q, k, v of a head, out, ffn1, ffn2.
template <bool kF16, bool kStay>
__device__ GiveSums LatencyBlock<kF16, kStay>::GiveOf(int phase, const LayerWords& words,
                                                      const CudaMatrix& w,
                                                      const HeadColumns& columns) const {
  using To = GiveSums::To;
  GiveSums give;
  give.to = phase == 0 ? To::kHead : phase == 2 ? To::kActivation : To::kResidual;
  give.columns = &columns;
  give.qkv = shared_ + p.plan.qkv;
  give.words = phase == 1 ? words.middle : phase == 2 ? words.ffn : words.out;
  give.x = X(0);
  give.ld = phase == 0 ? p.plan.ld_qkv : phase == 2 ? p.plan.ld_ffn : p.plan.ld_y;
  give.ld_x = p.plan.ld_x;
  give.n = w.n;
  give.epilogue = p.model.activation;
  give.flag = flag_;
  give.alive = alive_;
  return give;
}

// The phases are turns of a loop, so that what they share has its code once.
template <bool kF16, bool kStay>
__device__ bool LatencyBlock<kF16, kStay>::Layer(int index) {
  const StepLayer& layer = p.model.layers[index];
  const CudaAttentionArgs& attention = p.model.attention;
  const LayerWords words(p, index);
  const StateLayout& layout = attention.layout;
  bool has_head = false;
#pragma unroll 1
  for (int h = 0; h < layout.heads; ++h) has_head = has_head || share_.HasHead(index, h);
  const Tiles hidden = share_.Columns(p.model.hidden), ffn = share_.Columns(p.model.ffn);
#pragma unroll 1
  for (int phase = 0; phase < 4; ++phase) {
    const bool normalized = phase == 0 || phase == 2;
    const bool works =
        hidden.all() > 0 || (phase == 0 && has_head) || (phase == 2 && ffn.all() > 0);
    if (!works) continue;
    if (normalized) {
      const bool embeds = phase == 0 && index == 0;
      const uint64_t* from = embeds       ? nullptr
                             : phase == 0 ? LayerWords(p, index - 1).out
                                          : words.middle;
      const StepNorm norm = embeds       ? StepNorm()
                            : phase == 0 ? p.model.layers[index - 1].norm2
                                         : layer.norm1;
      if (!LoadRows(from, norm, /*last=*/false, alive_)) return false;
    } else {
      const bool heads = phase == 1;
      if (!LoadInput(heads ? words.attention : words.ffn,
                     heads ? p.plan.ld_attention : p.plan.ld_ffn, heads ? layout.heads : 1,
                     heads ? layout.value_dim : p.model.ffn)) {
        return false;
      }
    }
    const CudaMatrix& w = phase == 0   ? layer.qkv
                          : phase == 1 ? layer.out
                          : phase == 2 ? layer.ffn1
                                       : layer.ffn2;
#pragma unroll 1
    for (int h = 0; h < (phase == 0 ? layout.heads : 1); ++h) {
      if (phase == 0 && !share_.HasHead(index, h)) continue;
      const HeadColumns columns(attention, h);
      const Tiles tiles = phase == 0 ? columns.Covering(p.model.type) : phase == 2 ? ffn : hidden;
      Multiply(w, tiles, normalized, GiveOf(phase, words, w, columns));
      if (phase != 0) continue;
      __syncthreads();
      AttendHead(p, shared_, layer.omega, index, h, unit_, slots(), alive_);
      SendHead<kF16>(p, shared_, h, words.attention, flag_, alive_);
      ++unit_;
    }
  }
  return true;
}

// Few outputs: the block that samples a row computes them all. Many: the blocks of the stage share
// the columns, and those that sample wait for them.
template <bool kF16, bool kStay>
__device__ bool LatencyBlock<kF16, kStay>::Head() {
  if (!share_.IsLast()) return true;
  const int last = p.model.attention.layout.layers - 1;
  const StepNorm norm = p.model.layers[last].norm2;
  const uint64_t* from = LayerWords(p, last).out;
  const CudaMatrix& head = p.model.head;
  const bool local = share_.LocalHead();
  const TileSource<kStay> source = Take(head, share_.HeadTiles(p.plan.rows));
  uint64_t* const words = p.exchange + p.plan.outputs_at;
  const int ld = p.plan.ld_outputs;
  // With a shared head the first turn computes for all rows, the others sample a row each.
#pragma unroll 1
  for (int turn = local ? 0 : -1; turn < p.rows; ++turn) {
    if (turn >= 0 && (!Alive(turn) || !share_.Samples(turn))) continue;
    float* outputs = local ? shared_ + p.plan.outputs
                           : const_cast<float*>(p.sample.outputs) + At(turn, p.sample.ld_outputs);
    if (local || (turn < 0 && source.tiles.all() > 0)) {
      if (!LoadRows(from, norm, /*last=*/true, local ? 1u << turn : alive_)) return false;
      MultiplyF32(source, X(local ? turn : 0), p.plan.ld_x, local ? 1 : p.rows,
                  [&](int row, int column, float v) {
                    if (local) {
                      outputs[column] = v;
                    } else if (Alive(row)) {
                      Send(words + row * ld + column, __float_as_uint(v), flag_);
                    }
                  });
    }
    if (turn < 0) continue;
    __syncthreads();
    if (!local) {
      const bool arrived =
          ReceivePairs(words + turn * ld, head.n, static_cast<int>(threadIdx.x), kLatencyThreads,
                       flag_, watch_, [&](int i, uint32_t v) { outputs[i] = __uint_as_float(v); });
      if (!Arrived(arrived)) return false;
    }
    SampleAndTell(p, turn, outputs, flag_);
  }
  return true;
}

}  // namespace rivulet::kernels
