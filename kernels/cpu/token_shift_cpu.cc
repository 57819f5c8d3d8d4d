// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/token_shift_cpu.cc"
#include "hwy/foreach_target.h"
// (must stand before highway.h)
#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/vector_math-inl.h"
#include "kernels/token_shift.h"

HWY_BEFORE_NAMESPACE();
namespace rivulet::kernels::HWY_NAMESPACE {

void TokenShift(const TokenShiftArgs& args) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d), n = size_t(args.n), tokens = size_t(args.tokens);
  for (size_t t = 0; t < tokens; ++t) {
    const float* x = args.x + t * args.x_stride;
    const float* before = t == 0 ? args.state : x - args.x_stride;
    float* y = args.y + t * args.y_stride;
    for (size_t i = 0; i < n; i += lanes) {
      const size_t count = std::min(lanes, n - i);
      const FloatVec now = LoadSome(x + i, count);
      const FloatVec step = hn::Sub(LoadSome(before + i, count), now);
      for (size_t m = 0; m < size_t(args.mixes); ++m) {
        const FloatVec mix = LoadSome(args.mix + m * n + i, count);
        StoreSome(hn::MulAdd(step, mix, now), y + m * args.mix_stride + i, count);
      }
    }
  }
  if (tokens > 0) std::memcpy(args.state, args.x + (tokens - 1) * args.x_stride, n * sizeof(float));
}

}  // namespace rivulet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rivulet::kernels {

HWY_EXPORT(TokenShift);

void TokenShiftCpu(const TokenShiftArgs& args) { HWY_DYNAMIC_DISPATCH(TokenShift)(args); }

}  // namespace rivulet::kernels
#endif
