// SPDX-License-Identifier: Apache-2.0
// Steps of few rows in one launch: the members of LatencyBlock (latency_block_cuda.h), the kernel
// that calls them, and its launch.
#include "kernels/cuda/common/row_statistics_cuda.h"
#include "kernels/cuda/latency/latency_block_cuda.h"
#include "kernels/cuda/latency/latency_cuda.h"

namespace rivulet::kernels {

// The inputs of a block's products, received from other blocks.

// x <- norm(x), by one warp; zero behind the row.
__device__ inline void LatencyBlock::Normalize(float* x, const float* weight,
                                               const float* bias) const {
  const RowStatistics statistics = NormalizeStatistics(x, p.model.hidden, p.model.norm_eps);
#pragma unroll 2
  for (int i = LaneIndex(); i < p.plan.ld_x; i += kWarpLanes) {
    x[i] = i < p.model.hidden ? Normalized(x[i], statistics, __ldg(weight + i), __ldg(bias + i))
                              : 0.0f;
  }
  __syncwarp();
}

// Loads x of `rows`: from the exchange and normalised (`last`: also by the final norm, if there is
// one), or, without `from`, the embedding. Also stores it as the input of a product. One warp takes
// a row.
__device__ inline bool LatencyBlock::LoadRows(const uint64_t* from, const StepNorm& norm, bool last,
                                              uint32_t rows) {
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
#pragma unroll 2
    for (int i = LaneIndex(); i < (hidden + 31) / 32 * 16; i += kWarpLanes) {
      A(r)
      [i] = PackHalves(2 * i < hidden ? x[2 * i] : 0.0f, 2 * i + 1 < hidden ? x[2 * i + 1] : 0.0f);
    }
  }
  return Arrived(arrived);
}

// Stores word `i` of the exchange, two halves of a product's input row that consists of pieces of
// an odd `width`.
__device__ inline void LatencyBlock::PutHalves(int row, int i, uint32_t value, int width) const {
  const int each = (width + 1) / 2, column = 2 * (i % each);
  auto* halves = reinterpret_cast<uint16_t*>(A(row)) + i / each * width + column;
  halves[0] = static_cast<uint16_t>(value);
  if (column + 1 < width) halves[1] = static_cast<uint16_t>(value >> 16);
}

// Receives the rows of a product's input; zero behind them. One warp takes a row, or several warps
// where there are one or two rows.
__device__ inline bool LatencyBlock::LoadInput(const uint64_t* from, int ld, int heads, int width) {
  __syncthreads();
  const int parts = p.rows == 1 ? 4 : p.rows == 2 ? 2 : 1;
  const int k = heads * width, count = heads * ((width + 1) / 2);
  const bool whole = heads == 1 || width % 2 == 0;  // words of the exchange are words of the row
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
    } else {  // rare: slow code, but short
      came = ReceivePairs<1>(words, count, first, stride, flag_, watch_,
                             [&](int i, uint32_t v) { PutHalves(r, i, v, width); });
    }
    arrived = came && arrived;
    if (part != 0) continue;
    // The half behind an odd row came with the row's last word, unless PutHalves stored the pieces.
    auto* halves = reinterpret_cast<uint16_t*>(A(r));
    const int begin = whole ? k + k % 2 : k;
    for (int i = begin + LaneIndex(); i < (k + 31) / 32 * 32; i += kWarpLanes) halves[i] = 0;
  }
  return Arrived(arrived);
}

// The phases of a step of one block.

// The destination of the sums of phase 0 .. 3 of a layer: q, k, v of a head; out; ffn1; ffn2.
__device__ inline StoreSums LatencyBlock::StoreOf(int phase, const LayerWords& words,
                                                  const CudaMatrix& w,
                                                  const HeadColumns& columns) const {
  using To = StoreSums::To;
  StoreSums store;
  store.to = phase == 0 ? To::kHead : phase == 2 ? To::kActivation : To::kResidual;
  store.columns = &columns;
  store.qkv = shared_ + p.plan.qkv;
  store.words = phase == 1 ? words.middle : phase == 2 ? words.ffn : words.out;
  store.x = X(0);
  store.ld = phase == 0 ? p.plan.ld_qkv : phase == 2 ? p.plan.ld_ffn : p.plan.ld_y;
  store.ld_x = p.plan.ld_x;
  store.n = w.n;
  store.epilogue = p.model.activation;
  store.flag = flag_;
  store.alive = alive_;
  return store;
}

// The phases are turns of a loop, so that shared code exists once.
__device__ inline bool LatencyBlock::Layer(int index) {
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
    const bool works =
        hidden.all() > 0 || (phase == 0 && has_head) || (phase == 2 && ffn.all() > 0);
    if (!works) continue;
    if (phase == 0 || phase == 2) {
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
      const Tiles tiles = phase == 0 ? columns.Covering() : phase == 2 ? ffn : hidden;
      MultiplyF16(Take(w, tiles), A(0), p.plan.ld_a, p.rows, StoreOf(phase, words, w, columns));
      if (phase != 0) continue;
      __syncthreads();
      AttendHead(p, shared_, layer.omega, index, h, unit_, slots(), alive_);
      SendHead(p, shared_, h, words.attention, flag_, alive_);
      ++unit_;
    }
  }
  return true;
}

// Few outputs: the block that samples a row computes them all. Many: the blocks of the stage share
// the columns, and the sampling blocks wait for all of them.
__device__ inline bool LatencyBlock::Head() {
  if (!share_.IsLast()) return true;
  const int last = p.model.attention.layout.layers - 1;
  const StepNorm norm = p.model.layers[last].norm2;
  const uint64_t* from = LayerWords(p, last).out;
  const CudaMatrix& head = p.model.head;
  const bool local = share_.LocalHead();
  const TileSource source = Take(head, share_.HeadTiles(p.plan.rows));
  uint64_t* const words = p.exchange + p.plan.outputs_at;
  const int ld = p.plan.ld_outputs;
  // With a shared head the first turn computes outputs of all rows; each later turn samples a row.
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
    SampleAndSend(p, turn, outputs, flag_);
  }
  return true;
}

namespace {

__global__ void __launch_bounds__(kLatencyThreads, 1)
    Latency(const __grid_constant__ LatencyArgs p) {
  LatencyBlock block(p);
  if (!block.Load()) return;
  for (int step = 0; step < p.steps && block.Begin(step); ++step) {
    for (int l = block.stage(); l < p.model.attention.layout.layers; l += p.plan.stages) {
      if (!block.Layer(l)) return;
    }
    if (!block.Head()) return;
  }
  if (!block.gave_up()) block.StoreStates();
}

}  // namespace

cudaError_t PrepareLatencyCuda(const LatencyPlan& plan, int multiprocessors, size_t shared_limit,
                               bool* fits) {
  cudaError_t error = PrepareLargeKernel(Latency, shared_limit);
  if (error != cudaSuccess) return error;
  int blocks = 0;
  error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, Latency, kLatencyThreads,
                                                        plan.shared_bytes);
  *fits = int64_t{blocks} * multiprocessors >= plan.blocks();
  return error;
}

cudaError_t LatencyCuda(const CudaLaunch& launch, const LatencyArgs& args) {
  if (args.rows < 1 || args.rows > args.plan.rows || args.steps < 1 ||
      args.plan.rows > kLatencyMaxRows || args.sample.num_outputs != args.model.head.n) {
    return cudaErrorInvalidValue;
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(args.plan.blocks()));
  config.blockDim = dim3(kLatencyThreads);
  config.dynamicSmemBytes = args.plan.shared_bytes;
  config.stream = launch.stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, Latency, args);
}

}  // namespace rivulet::kernels
