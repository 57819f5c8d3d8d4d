// SPDX-License-Identifier: Apache-2.0
// Products without the inputs that are 0 in every row: only the weights of the other inputs are
// read from memory. One line of 16-bit weights is one input of a panel.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sparse_gemm_cpu.cc"
#include "hwy/foreach_target.h"
// (must stand before highway.h)
#include <algorithm>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/gemm_epilogue-inl.h"
#include "kernels/gemm.h"

HWY_BEFORE_NAMESPACE();
namespace rivulet::kernels::HWY_NAMESPACE {

using SparseTag = hn::CappedTag<float, 16>;
using SparseVec = hn::Vec<SparseTag>;
inline constexpr int kSparseLanes = static_cast<int>(HWY_MIN(HWY_LANES(float), 16));
inline constexpr int kSparseVecs = kPanelColumns / kSparseLanes;
// The number of inputs whose weights are prefetched: the hardware cannot guess the next input.
inline constexpr int kAhead = 16;

HWY_INLINE SparseVec Widen(const float* HWY_RESTRICT p) { return hn::Load(SparseTag(), p); }
HWY_INLINE SparseVec Widen(const hwy::float16_t* HWY_RESTRICT p) {
  return hn::PromoteTo(SparseTag(), hn::Load(hn::Rebind<hwy::float16_t, SparseTag>(), p));
}
HWY_INLINE SparseVec Widen(const hwy::bfloat16_t* HWY_RESTRICT p) {
  return hn::PromoteTo(SparseTag(), hn::Load(hn::Rebind<hwy::bfloat16_t, SparseTag>(), p));
}

// All rows of a panel.
template <int kRows, class Weight>
HWY_NOINLINE void SparseTile(const GemmArgs& args, int panel) {
  const SparseTag d;
  const Weight* HWY_RESTRICT w =
      static_cast<const Weight*>(args.w.panels) + size_t(panel) * size_t(args.w.k) * kPanelColumns;
  SparseVec acc[kRows][kSparseVecs];
  RIVULET_UNROLL
  for (int j = 0; j < kSparseVecs; ++j) {
    const SparseVec bias = hn::LoadU(d, args.bias + panel * kPanelColumns + j * kSparseLanes);
    RIVULET_UNROLL
    for (int i = 0; i < kRows; ++i) acc[i][j] = bias;
  }
  const int32_t* HWY_RESTRICT inputs = args.nonzero.inputs;
  const int count = args.nonzero.count, last = count - 1;
  constexpr int kLineWeights = 64 / sizeof(Weight);  // those of a cache line
  for (int n = 0; n < count; ++n) {
    const auto k = size_t(inputs[n]);
    const Weight* const next = w + size_t(inputs[HWY_MIN(n + kAhead, last)]) * kPanelColumns;
    RIVULET_UNROLL
    for (int j = 0; j < kPanelColumns; j += kLineWeights) hwy::Prefetch(next + j);
    SparseVec b[kSparseVecs];
    RIVULET_UNROLL
    for (int j = 0; j < kSparseVecs; ++j) b[j] = Widen(w + k * kPanelColumns + j * kSparseLanes);
    RIVULET_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const SparseVec a = hn::Set(d, args.x[size_t(i) * size_t(args.ldx) + k]);
      RIVULET_UNROLL
      for (int j = 0; j < kSparseVecs; ++j) acc[i][j] = hn::MulAdd(a, b[j], acc[i][j]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kSparseVecs; ++j) {
      StoreOutputs(d, args, acc[i][j], i, size_t(panel * kPanelColumns + j * kSparseLanes));
    }
  }
}

template <int kRows, class Weight>
HWY_INLINE void SparseRows(const GemmArgs& args) {
  if constexpr (kRows >= 1) {
    if (args.rows != kRows) return SparseRows<kRows - 1, Weight>(args);
    for (int panel = args.panel_begin; panel < args.panel_end; ++panel) {
      SparseTile<kRows, Weight>(args, panel);
    }
  }
}

void SparseGemm(const GemmArgs& args) {
  switch (args.w.type) {
    case WeightType::kF32:
      return SparseRows<kMostSparseRows, float>(args);
    case WeightType::kF16:
      return SparseRows<kMostSparseRows, hwy::float16_t>(args);
    case WeightType::kBF16:
      return SparseRows<kMostSparseRows, hwy::bfloat16_t>(args);
    default:
      return;  // not allowed
  }
}

}  // namespace rivulet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rivulet::kernels {

HWY_EXPORT(SparseGemm);

void SparseGemmCpu(const GemmArgs& args) { HWY_DYNAMIC_DISPATCH(SparseGemm)(args); }

int FindNonzero(const float* x, int rows, int ldx, int k, int32_t* inputs) {
  int count = 0;
  for (int i = 0; i < k; ++i) {
    bool any = false;
    for (int r = 0; r < rows; ++r) any |= x[size_t(r) * size_t(ldx) + size_t(i)] != 0;
    inputs[count] = i;
    count += any ? 1 : 0;
  }
  return count;
}

}  // namespace rivulet::kernels
#endif
