// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/decay_cpu.cc"
#include "hwy/foreach_target.h"
// (must stand before highway.h)
#include <algorithm>

#include "hwy/highway.h"
#include "kernels/cpu/vector_math-inl.h"
#include "kernels/decay.h"

HWY_BEFORE_NAMESPACE();
namespace rivulet::kernels::HWY_NAMESPACE {

template <class Fn>
HWY_INLINE void ForEachVector(const DecayArgs& args, const Fn& f) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d), n = size_t(args.n);
  const FloatVec floor = hn::Set(d, args.floor);
  for (size_t r = 0; r < size_t(args.rows); ++r) {
    for (size_t i = 0; i < n; i += lanes) {
      const size_t count = std::min(lanes, n - i);
      FloatVec z = LoadSome(args.x + r * args.x_stride + i, count);
      if (args.bias != nullptr) z = hn::Add(z, LoadSome(args.bias + i, count));
      if (args.negate) z = hn::Neg(z);
      const FloatVec exponent = hn::Neg(hn::Mul(LoadSome(args.scale + i, count), f(z)));
      // Max and Exp would drop a NaN.
      const FloatVec bounded = hn::IfThenElse(hn::Lt(exponent, floor), floor, exponent);
      const FloatVec w = hn::IfThenElse(hn::IsNaN(bounded), bounded, hn::Exp(d, bounded));
      StoreSome(w, args.y + r * args.y_stride + i, count);
    }
  }
}

void Decay(const DecayArgs& args) {
  const FloatTag d;
  switch (args.kind) {
    case DecayKind::kIdentity:
      return ForEachVector(args, [](FloatVec z) HWY_ATTR { return z; });
    case DecayKind::kSoftplus:
      return ForEachVector(args, [&](FloatVec z) HWY_ATTR { return Softplus(d, z); });
    case DecayKind::kSigmoid:
      return ForEachVector(args, [&](FloatVec z) HWY_ATTR { return Sigmoid(d, z); });
  }
}

}  // namespace rivulet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rivulet::kernels {

HWY_EXPORT(Decay);

void DecayCpu(const DecayArgs& args) { HWY_DYNAMIC_DISPATCH(Decay)(args); }

}  // namespace rivulet::kernels
#endif
