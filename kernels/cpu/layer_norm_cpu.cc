// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/layer_norm_cpu.cc"
#include "hwy/foreach_target.h"
// (must stand before highway.h)
#include <cmath>

#include "hwy/highway.h"
#include "kernels/cpu/vector_math-inl.h"
#include "kernels/layer_norm.h"

HWY_BEFORE_NAMESPACE();
namespace rivulet::kernels::HWY_NAMESPACE {

void NormalizeRow(const LayerNormArgs& args, const float* x, float* y) {
  const FloatTag d;
  const size_t n = size_t(args.n);
  const auto [mean, variance] = MeanAndVariance(x, n);
  const FloatVec vmean = hn::Set(d, mean);
  const float scale = 1.0f / std::sqrt(variance + args.eps);
  const FloatVec vscale = hn::Set(d, scale);
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const FloatVec c = hn::Mul(hn::Sub(hn::LoadU(d, x + i), vmean), vscale);
    hn::StoreU(hn::MulAdd(c, hn::LoadU(d, args.weight + i), hn::LoadU(d, args.bias + i)), d, y + i);
  }
  for (; i < n; ++i) y[i] = MulAdd1((x[i] - mean) * scale, args.weight[i], args.bias[i]);
  for (; i < size_t(args.ld); ++i) y[i] = 0;
}

void LayerNorm(const LayerNormArgs& args) {
  for (int r = 0; r < args.rows; ++r) {
    NormalizeRow(args, args.x + size_t(r) * size_t(args.ld), args.y + size_t(r) * size_t(args.ld));
  }
}

}  // namespace rivulet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rivulet::kernels {

HWY_EXPORT(LayerNorm);

void LayerNormCpu(const LayerNormArgs& args) { HWY_DYNAMIC_DISPATCH(LayerNorm)(args); }

}  // namespace rivulet::kernels
#endif
