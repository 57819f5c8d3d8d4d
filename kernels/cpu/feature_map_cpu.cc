// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/feature_map_cpu.cc"
#include "hwy/foreach_target.h"
// (must stand before highway.h)
#include <algorithm>
#include <cmath>

#include "hwy/highway.h"
#include "kernels/cpu/vector_math-inl.h"
#include "kernels/feature_map.h"

HWY_BEFORE_NAMESPACE();
namespace rivulet::kernels::HWY_NAMESPACE {

// Calls f(u, c, lanes) for kVecs vectors of u[c] = sum_k (scale x[k]) omega[k][c], k ascending.
template <int kVecs, class Fn>
HWY_INLINE void ProjectColumns(const FeatureMapArgs& args, const float* x, float scale, size_t c,
                               const Fn& f) {
  const FloatTag d;
  const size_t n = size_t(args.columns), lanes = hn::Lanes(d), key_dim = size_t(args.key_dim);
  FloatVec u[kVecs];
  for (int j = 0; j < kVecs; ++j) u[j] = hn::Zero(d);
  for (size_t k = 0; k < key_dim; ++k) {
    const FloatVec a = hn::Set(d, x[k] * scale);
    const float* w = args.omega + k * n + c;
    for (int j = 0; j < kVecs; ++j) {
      u[j] = hn::MulAdd(a, hn::LoadU(d, w + size_t(j) * lanes), u[j]);
    }
  }
  for (int j = 0; j < kVecs; ++j) f(u[j], c + size_t(j) * lanes, lanes);
}

// ... for all columns, in vectors of `count` columns.
template <class Fn>
HWY_INLINE void Project(const FeatureMapArgs& args, const float* x, float scale, const Fn& f) {
  const FloatTag d;
  const size_t n = size_t(args.columns), lanes = hn::Lanes(d), key_dim = size_t(args.key_dim);
  size_t c = 0;
  // Several vectors at once hide the latency of the multiply-adds.
  for (; c + 4 * lanes <= n; c += 4 * lanes) ProjectColumns<4>(args, x, scale, c, f);
  for (; c + 2 * lanes <= n; c += 2 * lanes) ProjectColumns<2>(args, x, scale, c, f);
  for (; c < n; c += lanes) {
    const size_t count = std::min(lanes, n - c);
    FloatVec u = hn::Zero(d);
    for (size_t k = 0; k < key_dim; ++k) {
      u = hn::MulAdd(hn::Set(d, x[k] * scale), LoadSome(args.omega + k * n + c, count), u);
    }
    f(u, c, count);
  }
}

void Elu(const FeatureMapArgs& args, const float* x, float* out) {
  const FloatTag d;
  const size_t n = size_t(args.key_dim), lanes = hn::Lanes(d);
  for (size_t i = 0; i < n; i += lanes) {
    const size_t count = std::min(lanes, n - i);
    const FloatVec v = LoadSome(x + i, count);
    // exp, not expm1 + 1: small features keep their relative precision.
    const FloatVec below = hn::Exp(d, hn::Min(v, hn::Zero(d)));
    const FloatVec above = hn::Add(v, hn::Set(d, 1.0f));
    StoreSome(hn::IfThenElse(hn::Gt(v, hn::Zero(d)), above, below), out + i, count);
  }
}

// first(u) and second(u), scaled, side by side: [first ... | second ...].
template <class First, class Second>
HWY_INLINE void Pairs(const FeatureMapArgs& args, const float* x, float x_scale, float* out,
                      const First& first, const Second& second) {
  const size_t n = size_t(args.columns);
  Project(args, x, x_scale, [&](FloatVec u, size_t c, size_t count) {
    StoreSome(first(u), out + c, count);
    StoreSome(second(u), out + n + c, count);
  });
}

void FeatureMap(const FeatureMapArgs& args, const float* x, float* out) {
  const FloatTag d;
  const FloatVec scale = hn::Set(d, args.out_scale);
  const auto cosine = [&](FloatVec u) { return hn::Mul(hn::Cos(d, u), scale); };
  const auto sine = [&](FloatVec u) { return hn::Mul(hn::Sin(d, u), scale); };
  switch (args.kind) {
    case FeatureMapKind::kElu:
      return Elu(args, x, out);
    case FeatureMapKind::kSmoothedRandomFourier:
      out[2 * args.columns] = args.smoothing;
      return Pairs(args, x, args.x_scale, out, cosine, sine);
    case FeatureMapKind::kRandomFourier:
      return Pairs(args, x, args.x_scale, out, cosine, sine);
    case FeatureMapKind::kRfa: {
      const float norm = std::sqrt(SquaredNorm(x, size_t(args.key_dim)));
      return Pairs(args, x, 1.0f / std::max(norm, 1e-6f), out, sine, cosine);
    }
    case FeatureMapKind::kFavor: {
      const float square = SquaredNorm(x, size_t(args.key_dim)) * (args.x_scale * args.x_scale);
      const FloatVec h = hn::Set(d, square * 0.5f + args.out_scale);
      return Pairs(
          args, x, args.x_scale, out, [&](FloatVec u) { return hn::Exp(d, hn::Sub(u, h)); },
          [&](FloatVec u) { return hn::Exp(d, hn::Sub(hn::Neg(u), h)); });
    }
    case FeatureMapKind::kGeneralizedRandomRelu:
      return Project(args, x, args.x_scale, [&](FloatVec u, size_t c, size_t count) {
        StoreSome(hn::Max(u, hn::Zero(d)), out + c, count);
      });
  }
}

}  // namespace rivulet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rivulet::kernels {

HWY_EXPORT(FeatureMap);

void FeatureMapCpu(const FeatureMapArgs& args, const float* x, float* out) {
  HWY_DYNAMIC_DISPATCH(FeatureMap)(args, x, out);
}

}  // namespace rivulet::kernels
#endif
