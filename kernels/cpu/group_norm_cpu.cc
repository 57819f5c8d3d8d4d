// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/group_norm_cpu.cc"
#include "hwy/foreach_target.h"
// (must stand before highway.h)
#include <algorithm>
#include <cmath>

#include "hwy/highway.h"
#include "kernels/cpu/vector_math-inl.h"
#include "kernels/group_norm.h"

HWY_BEFORE_NAMESPACE();
namespace rivulet::kernels::HWY_NAMESPACE {

void NormalizeGroup(const GroupNormArgs& args, const float* x, size_t first, float* y) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d), size = size_t(args.size);
  const Moments moments = MeanAndVariance(x, size);
  const FloatVec mean = hn::Set(d, moments.mean);
  const FloatVec scale = hn::Set(d, 1.0f / std::sqrt(moments.variance + args.eps));
  for (size_t i = 0; i < size; i += lanes) {
    const size_t count = std::min(lanes, size - i);
    FloatVec value = hn::Mul(hn::Sub(LoadSome(x + i, count), mean), scale);
    const FloatVec weight =
        args.weight == nullptr ? hn::Set(d, 1.0f) : LoadSome(args.weight + first + i, count);
    const FloatVec bias =
        args.bias == nullptr ? hn::Zero(d) : LoadSome(args.bias + first + i, count);
    StoreSome(hn::MulAdd(value, weight, bias), y + i, count);
  }
}

void GroupNorm(const GroupNormArgs& args) {
  for (size_t r = 0; r < size_t(args.rows); ++r) {
    for (size_t g = 0; g < size_t(args.groups); ++g) {
      const size_t first = g * size_t(args.size);
      NormalizeGroup(args, args.x + r * args.x_stride + first, first,
                     args.y + r * args.y_stride + first);
    }
  }
}

}  // namespace rivulet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rivulet::kernels {

HWY_EXPORT(GroupNorm);

void GroupNormCpu(const GroupNormArgs& args) { HWY_DYNAMIC_DISPATCH(GroupNorm)(args); }

}  // namespace rivulet::kernels
#endif
