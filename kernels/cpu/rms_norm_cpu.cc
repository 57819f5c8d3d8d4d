// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rms_norm_cpu.cc"
#include "hwy/foreach_target.h"
// (must stand before highway.h)
#include <algorithm>
#include <cmath>

#include "hwy/highway.h"
#include "kernels/cpu/vector_math-inl.h"
#include "kernels/rms_norm.h"

HWY_BEFORE_NAMESPACE();
namespace rivulet::kernels::HWY_NAMESPACE {

void RmsNorm(const RmsNormArgs& args) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d), size = size_t(args.size);
  for (size_t r = 0; r < size_t(args.rows); ++r) {
    for (size_t g = 0; g < size_t(args.groups); ++g) {
      const float* x = args.x + r * args.x_stride + g * size;
      float* y = args.y + r * args.y_stride + g * size;
      const float mean_square = SquaredNorm(x, size) / float(args.size);
      const FloatVec scale = hn::Set(d, 1.0f / std::sqrt(mean_square + args.eps));
      for (size_t i = 0; i < size; i += lanes) {
        const size_t count = std::min(lanes, size - i);
        FloatVec value = hn::Mul(LoadSome(x + i, count), scale);
        if (args.weight != nullptr) {
          value = hn::Mul(value, LoadSome(args.weight + g * args.weight_stride + i, count));
        }
        StoreSome(value, y + i, count);
      }
    }
  }
}

}  // namespace rivulet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rivulet::kernels {

HWY_EXPORT(RmsNorm);

void RmsNormCpu(const RmsNormArgs& args) { HWY_DYNAMIC_DISPATCH(RmsNorm)(args); }

}  // namespace rivulet::kernels
#endif
