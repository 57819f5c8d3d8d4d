// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation_cpu.cc"
#include "hwy/foreach_target.h"
// (must stand before highway.h)
#include <algorithm>

#include "hwy/highway.h"
#include "kernels/activation.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rivulet::kernels::HWY_NAMESPACE {

template <class Fn>
HWY_INLINE void ForEachVector(const ActivationArgs& args, const Fn& f) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d), n = size_t(args.n);
  for (size_t r = 0; r < size_t(args.rows); ++r) {
    for (size_t i = 0; i < n; i += lanes) {
      const size_t count = std::min(lanes, n - i);
      FloatVec x = LoadSome(args.x + r * args.x_stride + i, count);
      if (args.bias != nullptr) x = hn::Add(x, LoadSome(args.bias + i, count));
      x = f(x);
      if (args.times != nullptr) {
        x = hn::Mul(x, LoadSome(args.times + r * args.times_stride + i, count));
      }
      StoreSome(x, args.y + r * args.y_stride + i, count);
    }
  }
}

void Activate(const ActivationArgs& args) {
  const FloatTag d;
  switch (args.kind) {
    case Activation::kIdentity:
      return ForEachVector(args, [](FloatVec x) HWY_ATTR { return x; });
    case Activation::kSigmoid:
      return ForEachVector(args, [&](FloatVec x) HWY_ATTR { return Sigmoid(d, x); });
    case Activation::kSilu:
      return ForEachVector(args, [&](FloatVec x) HWY_ATTR { return hn::Mul(x, Sigmoid(d, x)); });
    case Activation::kSoftplus:
      return ForEachVector(args, [&](FloatVec x) HWY_ATTR { return Softplus(d, x); });
    case Activation::kTanh:
      return ForEachVector(args, [&](FloatVec x) HWY_ATTR { return ClampedTanh(d, x); });
    case Activation::kSquaredRelu:
      return ForEachVector(args, [&](FloatVec x) HWY_ATTR {
        const FloatVec positive = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x);
        return hn::Mul(positive, positive);
      });
  }
}

}  // namespace rivulet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rivulet::kernels {

HWY_EXPORT(Activate);

void ActivationCpu(const ActivationArgs& args) { HWY_DYNAMIC_DISPATCH(Activate)(args); }

}  // namespace rivulet::kernels
#endif
