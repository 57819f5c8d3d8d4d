// SPDX-License-Identifier: Apache-2.0
// The packed product with Highway. A tile is kRows rows by kVecs vectors of columns held in
// registers for the whole of k. Few rows take several panels at once, which hides the latency of
// the multiply-adds; many rows go in blocks that read a panel while it is in the first caches. For
// many rows 16-bit weights are widened once for all blocks, because widening uses the same units as
// multiplying.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_cpu.cc"
#include "hwy/foreach_target.h"
// (must stand before highway.h)
#include <algorithm>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/gemm_epilogue-inl.h"
#include "kernels/gemm.h"
#include "kernels/quantized.h"

HWY_BEFORE_NAMESPACE();
namespace rivulet::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
inline constexpr int kLanes = 16;
inline constexpr int kMaxRows = 6;  // 6 x 4 accumulators of 32 registers
inline constexpr int kMaxRowsF32 = 12;
inline constexpr int kMaxAccumulators = 24;
inline constexpr int kMaxVecs = 8;
#elif HWY_TARGET == HWY_AVX2
inline constexpr int kLanes = 8;
inline constexpr int kMaxRows = 6;  // 6 x 2 accumulators of 16 registers
inline constexpr int kMaxRowsF32 = 6;
inline constexpr int kMaxAccumulators = 12;
inline constexpr int kMaxVecs = 8;
#else  // one lane under HWY_SCALAR, four on NEON
inline constexpr int kLanes = static_cast<int>(HWY_MIN(HWY_LANES(float), 4));
inline constexpr int kMaxRows = 6;
inline constexpr int kMaxRowsF32 = 6;
inline constexpr int kMaxAccumulators = 12;
inline constexpr int kMaxVecs = 8;
#endif
inline constexpr int kCacheLine = 64;  // bytes
inline constexpr int kVecsPerPanel = kPanelColumns / kLanes;
using Tag = hn::CappedTag<float, kLanes>;
using Vec = hn::Vec<Tag>;

// The number of vectors of columns for a tile of `rows` rows: the largest power of two that fits
// the registers.
constexpr int VecsFor(int rows) {
  int vecs = 1;
  while (vecs * 2 <= kMaxVecs && vecs * 2 * rows <= kMaxAccumulators) vecs *= 2;
  return vecs;
}

// The number of rows of a block. Float32 weights are wide: reading them costs more than broadcasts
// of x, so their blocks have more rows.
template <class Weight>
constexpr int RowsPerBlock() {
  return sizeof(Weight) == sizeof(float) ? kMaxRowsF32 : kMaxRows;
}

HWY_INLINE Vec LoadWeights(const float* HWY_RESTRICT p) { return hn::Load(Tag(), p); }
HWY_INLINE Vec LoadWeights(const hwy::float16_t* HWY_RESTRICT p) {
  return hn::PromoteTo(Tag(), hn::Load(hn::Rebind<hwy::float16_t, Tag>(), p));
}
HWY_INLINE Vec LoadWeights(const hwy::bfloat16_t* HWY_RESTRICT p) {
  return hn::PromoteTo(Tag(), hn::Load(hn::Rebind<hwy::bfloat16_t, Tag>(), p));
}

// Rows row .. row + kRows - 1, columns of vectors vec .. vec + kVecs - 1 (counted over the whole
// matrix).
template <int kRows, int kVecs, bool kPrefetch, class Weight>
HWY_NOINLINE void Tile(const GemmArgs& args, int row, int vec) {
  const Tag d;
  const int k = args.w.k;
  const size_t panel_size = size_t(k) * kPanelColumns;
  const float* HWY_RESTRICT x = args.x + size_t(row) * size_t(args.ldx);
  const Weight* w[kVecs];
  Vec acc[kRows][kVecs];
  RIVULET_UNROLL
  for (int j = 0; j < kVecs; ++j) {
    const int v = vec + j;
    w[j] = static_cast<const Weight*>(args.w.panels) + size_t(v / kVecsPerPanel) * panel_size +
           size_t(v % kVecsPerPanel) * kLanes;
    const Vec bias = hn::LoadU(d, args.bias + size_t(v) * kLanes);
    RIVULET_UNROLL
    for (int i = 0; i < kRows; ++i) acc[i][j] = bias;
  }
  for (int kk = 0; kk < k; ++kk) {
    Vec b[kVecs];
    RIVULET_UNROLL
    for (int j = 0; j < kVecs; ++j) b[j] = LoadWeights(w[j] + size_t(kk) * kPanelColumns);
    // The panels after these arrive while these are used.
    if constexpr (kPrefetch) {
      constexpr int kPanels = HWY_MAX(1, kVecs / kVecsPerPanel);
      constexpr int kBytes = HWY_MIN(kVecs, kVecsPerPanel) * kLanes * int(sizeof(Weight));
      RIVULET_UNROLL
      for (int panel = kPanels; panel < 2 * kPanels; ++panel) {
        const Weight* next = w[0] + size_t(panel) * panel_size + size_t(kk) * kPanelColumns;
        RIVULET_UNROLL
        for (int line = 0; line < kBytes; line += kCacheLine) {
          hwy::Prefetch(next + line / int(sizeof(Weight)));
        }
      }
    }
    RIVULET_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const Vec a = hn::Set(d, x[size_t(i) * size_t(args.ldx) + size_t(kk)]);
      RIVULET_UNROLL
      for (int j = 0; j < kVecs; ++j) acc[i][j] = hn::MulAdd(a, b[j], acc[i][j]);
    }
  }
  RIVULET_UNROLL
  for (int i = 0; i < kRows; ++i) {
    RIVULET_UNROLL
    for (int j = 0; j < kVecs; ++j) {
      StoreOutputs(d, args, acc[i][j], row + i, size_t(vec + j) * kLanes);
    }
  }
}

// Vectors of columns vec .. vec_end - 1 with tiles of kVecs, then the rest with smaller ones.
// kBlocks: other rows use the same panels.
template <int kRows, int kVecs, bool kBlocks, class Weight>
HWY_INLINE void TileColumns(const GemmArgs& args, int row, int vec, int vec_end) {
  // With weights used once, several panels already stream from several places, and a prefetch only
  // costs time.
  constexpr bool kPrefetch = kBlocks || kVecs <= kVecsPerPanel;
  for (; vec + kVecs <= vec_end; vec += kVecs) {
    Tile<kRows, kVecs, kPrefetch, Weight>(args, row, vec);
  }
  if constexpr (kVecs > 1) {
    if (vec < vec_end) TileColumns<kRows, kVecs / 2, kBlocks, Weight>(args, row, vec, vec_end);
  }
}

template <int kRows, bool kBlocks, class Weight>
HWY_INLINE void TileRows(const GemmArgs& args, int rows, int row, int vec, int vec_end) {
  if constexpr (kRows >= 1) {
    if (rows == kRows) {
      TileColumns<kRows, VecsFor(kRows), kBlocks, Weight>(args, row, vec, vec_end);
    } else {
      TileRows<kRows - 1, kBlocks, Weight>(args, rows, row, vec, vec_end);
    }
  }
}

// Several blocks of rows and 16-bit weights: a part is some columns of some k. All blocks pass a
// part before the next one. The first block widens the part; the other blocks find it widened in
// the first cache. The sums wait in memory from part to part.
template <int kVecs>
struct PartBuffers {
  static constexpr int kColumns = kVecs * kLanes;
  static constexpr int kDepth = 4096 / kColumns;  // k of a part: 16 KiB of weights
  static constexpr int kBlocks = 22;              // blocks at once: 128 rows
  alignas(kCacheLine) float weights[kDepth * kColumns];
  alignas(kCacheLine) float sums[kBlocks * kMaxRows * kColumns];
};

// Vectors of columns from vec on, k_begin .. k_end - 1.
struct Part {
  int vec, k_begin, k_end;
};

// The lines of the next part that a tile prefetches from `begin` on, in each of its panels: `lines`
// lines for each kStep of k.
struct Ahead {
  const char* begin;
  int lines;
};
inline constexpr int kStep = 16;

template <class Weight>
HWY_INLINE const Weight* WeightsAt(const PackedMatrix& w, int vec, int k) {
  return static_cast<const Weight*>(w.panels) +
         (size_t(vec / kVecsPerPanel) * size_t(w.k) + size_t(k)) * kPanelColumns +
         size_t(vec % kVecsPerPanel) * kLanes;
}

// One k of a tile.
template <int kRows, int kVecs>
HWY_INLINE void MultiplyAdd(const float* HWY_RESTRICT x, size_t ldx, const Vec (&b)[kVecs],
                            Vec (&acc)[kRows][kVecs]) {
  RIVULET_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const Vec a = hn::Set(Tag(), x[size_t(i) * ldx]);
    RIVULET_UNROLL
    for (int j = 0; j < kVecs; ++j) acc[i][j] = hn::MulAdd(a, b[j], acc[i][j]);
  }
}

// Adds the part's products to the sums. kFirst: widens the part.
template <int kRows, int kVecs, bool kFirst, class Weight>
HWY_INLINE void AddPart(const GemmArgs& args, const Part& part, int row, const Ahead& ahead,
                        float* HWY_RESTRICT weights, Vec (&acc)[kRows][kVecs]) {
  const Weight* from[kVecs];
  RIVULET_UNROLL
  for (int j = 0; j < kVecs; ++j) {
    from[j] = WeightsAt<Weight>(args.w, part.vec + j, part.k_begin);
  }
  const size_t ldx = size_t(args.ldx);
  const float* HWY_RESTRICT x = args.x + size_t(row) * ldx + size_t(part.k_begin);
  const auto next_k = [&]() HWY_ATTR {
    Vec b[kVecs];
    RIVULET_UNROLL
    for (int j = 0; j < kVecs; ++j) {
      if constexpr (kFirst) {
        b[j] = LoadWeights(from[j]);
        hn::Store(b[j], Tag(), weights + j * kLanes);
        from[j] += kPanelColumns;
      } else {
        b[j] = hn::Load(Tag(), weights + j * kLanes);
      }
    }
    weights += kVecs * kLanes;
    MultiplyAdd<kRows, kVecs>(x, ldx, b, acc);
    ++x;
  };
  constexpr int kPanels = HWY_MAX(1, kVecs / kVecsPerPanel);
  const size_t panel_bytes = sizeof(Weight) * kPanelColumns * size_t(args.w.k);
  const char* line = ahead.begin;
  int left = part.k_end - part.k_begin;
  for (; left >= kStep; left -= kStep) {
    for (int i = 0; i < ahead.lines; ++i, line += kCacheLine) {
      RIVULET_UNROLL
      for (int panel = 0; panel < kPanels; ++panel) {
        hwy::Prefetch(line + size_t(panel) * panel_bytes);
      }
    }
    RIVULET_UNROLL
    for (int i = 0; i < kStep; ++i) next_k();
  }
  for (; left > 0; --left) next_k();
}

template <int kRows, int kVecs, bool kFirst, class Weight>
HWY_NOINLINE void PartTile(const GemmArgs& args, const Part& part, int row, const Ahead& ahead,
                           float* HWY_RESTRICT weights, float* HWY_RESTRICT sums) {
  const Tag d;
  Vec acc[kRows][kVecs];
  RIVULET_UNROLL
  for (int j = 0; j < kVecs; ++j) {
    const Vec bias = hn::LoadU(d, args.bias + size_t(part.vec + j) * kLanes);
    RIVULET_UNROLL
    for (int i = 0; i < kRows; ++i) {
      acc[i][j] = part.k_begin == 0 ? bias : hn::Load(d, sums + (i * kVecs + j) * kLanes);
    }
  }
  AddPart<kRows, kVecs, kFirst, Weight>(args, part, row, ahead, weights, acc);
  RIVULET_UNROLL
  for (int i = 0; i < kRows; ++i) {
    RIVULET_UNROLL
    for (int j = 0; j < kVecs; ++j) {
      if (part.k_end < args.w.k) {
        hn::Store(acc[i][j], d, sums + (i * kVecs + j) * kLanes);
      } else {
        StoreOutputs(d, args, acc[i][j], row + i, size_t(part.vec + j) * kLanes);
      }
    }
  }
}

template <int kRows, int kVecs, bool kFirst, class Weight>
HWY_INLINE void PartRows(const GemmArgs& args, const Part& part, int rows, int row,
                         const Ahead& ahead, float* weights, float* sums) {
  if constexpr (2 * kRows >= kMaxRows) {  // blocks are even
    if (rows == kRows) {
      PartTile<kRows, kVecs, kFirst, Weight>(args, part, row, ahead, weights, sums);
    } else {
      PartRows<kRows - 1, kVecs, kFirst, Weight>(args, part, rows, row, ahead, weights, sums);
    }
  }
}

// Blocks block_begin .. block_end - 1 of `blocks`. They share the lines of the next part evenly:
// many requests at once would delay the loads.
template <int kVecs, class Weight>
HWY_INLINE void RunPart(const GemmArgs& args, const Part& part, int blocks, int block_begin,
                        int block_end, PartBuffers<kVecs>* buffers) {
  using Buffers = PartBuffers<kVecs>;
  constexpr int kSteps = Buffers::kDepth / kStep;
  // A line is one k of a panel.
  static_assert(sizeof(Weight) * kPanelColumns == kCacheLine);
  const int steps = kSteps * (block_end - block_begin);
  const int lines = (Buffers::kDepth + steps - 1) / steps;
  const auto row_of = [&](int block) { return int(int64_t{args.rows} * block / blocks); };
  for (int block = block_begin; block < block_end; ++block) {
    const int row = row_of(block), rows = row_of(block + 1) - row;
    const int line = part.k_end + (block - block_begin) * lines * kSteps;
    const Ahead ahead = {reinterpret_cast<const char*>(WeightsAt<Weight>(args.w, part.vec, line)),
                         lines};
    float* const sums = buffers->sums + (row - row_of(block_begin)) * Buffers::kColumns;
    if (block == block_begin) {
      PartRows<kMaxRows, kVecs, true, Weight>(args, part, rows, row, ahead, buffers->weights, sums);
    } else {
      PartRows<kMaxRows, kVecs, false, Weight>(args, part, rows, row, ahead, buffers->weights,
                                               sums);
    }
  }
}

template <int kVecs, class Weight>
void RunParts(const GemmArgs& args, int blocks, int vec, int vec_end) {
  PartBuffers<kVecs> buffers;
  constexpr int kBlocks = buffers.kBlocks, kDepth = buffers.kDepth;
  const int groups = (blocks + kBlocks - 1) / kBlocks;
  for (; vec + kVecs <= vec_end; vec += kVecs) {
    for (int group = 0; group < groups; ++group) {
      const int begin = blocks * group / groups, end = blocks * (group + 1) / groups;
      for (int k = 0; k < args.w.k; k += kDepth) {
        const Part part = {vec, k, std::min(k + kDepth, args.w.k)};
        RunPart<kVecs, Weight>(args, part, blocks, begin, end, &buffers);
      }
    }
  }
  if constexpr (kVecs > kVecsPerPanel) {
    if (vec < vec_end) RunParts<kVecs / 2, Weight>(args, blocks, vec, vec_end);
  }
}

template <class Weight>
void Run(const GemmArgs& args) {
  constexpr int kRows = RowsPerBlock<Weight>();
  // Blocks of equal size: 8 rows are 4 + 4, not 6 + 2.
  const int blocks = (args.rows + kRows - 1) / kRows;
  if (blocks == 0) return;
  const int vec_begin = args.panel_begin * kVecsPerPanel;
  const int vec_end = args.panel_end * kVecsPerPanel;
  // One block: all columns in one sweep, in the widest tiles that fit.
  if (blocks == 1) return TileRows<kRows, false, Weight>(args, args.rows, 0, vec_begin, vec_end);
  // Several blocks: all rows pass some columns before the next columns.
  if constexpr (sizeof(Weight) < sizeof(float)) {
    return RunParts<VecsFor(kRows), Weight>(args, blocks, vec_begin, vec_end);
  }
  constexpr int kVecsAtOnce = HWY_MAX(kVecsPerPanel, VecsFor(kRows));
  for (int vec = vec_begin; vec < vec_end; vec += kVecsAtOnce) {
    for (int block = 0; block < blocks; ++block) {
      const int row = int(int64_t{args.rows} * block / blocks);
      const int row_end = int(int64_t{args.rows} * (block + 1) / blocks);
      TileRows<kRows, true, Weight>(args, row_end - row, row, vec,
                                    std::min(vec + kVecsAtOnce, vec_end));
    }
  }
}

void Gemm(const GemmArgs& args) {
  switch (args.w.type) {
    case WeightType::kF32:
      return Run<float>(args);
    case WeightType::kF16:
      return Run<hwy::float16_t>(args);
    case WeightType::kBF16:
      return Run<hwy::bfloat16_t>(args);
    default:
      return;  // QuantizedGemmCpu
  }
}

}  // namespace rivulet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rivulet::kernels {

HWY_EXPORT(Gemm);

void GemmCpu(const GemmArgs& args) {
  if (IsQuantized(args.w.type)) return QuantizedGemmCpu(args);
  HWY_DYNAMIC_DISPATCH(Gemm)(args);
}

}  // namespace rivulet::kernels
#endif
