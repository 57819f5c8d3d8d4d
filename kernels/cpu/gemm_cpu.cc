// SPDX-License-Identifier: Apache-2.0
// The packed product with Highway. A tile is kRows rows by kVecs vectors of columns held in
// registers for the whole of k. Few rows take several panels at once, which hides the latency of
// the multiply-adds; many rows go in blocks that read a panel while it is in the first caches.
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

#if defined(__clang__)
#define RIVULET_UNROLL _Pragma("clang loop unroll(full)")
#else
#define RIVULET_UNROLL _Pragma("GCC unroll 16")
#endif

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

// Vectors of columns for a tile of `rows` rows: as many as the registers hold, a power of two.
constexpr int VecsFor(int rows) {
  int vecs = 1;
  while (vecs * 2 <= kMaxVecs && vecs * 2 * rows <= kMaxAccumulators) vecs *= 2;
  return vecs;
}

// How many rows form a block. Float32 weights are wide: reading them costs more than broadcasts of
// x, so more rows take them at once.
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
      StoreOutputs(d, args, acc[i][j],
                   size_t(row + i) * size_t(args.ldy) + size_t(vec + j) * kLanes);
    }
  }
}

// Vectors of columns vec .. vec_end - 1 with tiles of kVecs, then the rest with smaller ones.
// kBlocks: other rows use the same panels.
template <int kRows, int kVecs, bool kBlocks, class Weight>
HWY_INLINE void TileColumns(const GemmArgs& args, int row, int vec, int vec_end) {
  // Each weight used once, several panels already stream from several places; a prefetch then only
  // costs.
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

template <class Weight>
void Run(const GemmArgs& args) {
  constexpr int kRows = RowsPerBlock<Weight>();
  // Even blocks: 8 rows are 4 + 4, not 6 + 2.
  const int blocks = (args.rows + kRows - 1) / kRows;
  if (blocks == 0) return;
  const int vec_begin = args.panel_begin * kVecsPerPanel;
  const int vec_end = args.panel_end * kVecsPerPanel;
  // One block: all columns in one sweep, in as wide tiles as fit.
  if (blocks == 1) return TileRows<kRows, false, Weight>(args, args.rows, 0, vec_begin, vec_end);
  // Several: all rows go through some panels before the next ones.
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
