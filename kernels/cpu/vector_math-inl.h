// SPDX-License-Identifier: Apache-2.0
// Vector functions that Highway's math library lacks, and sums in a fixed order. Per-target
// include: see Highway's `-inl.h` convention.
#if defined(RIVULET_KERNELS_VECTOR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RIVULET_KERNELS_VECTOR_MATH_INL_H_
#undef RIVULET_KERNELS_VECTOR_MATH_INL_H_
#else
#define RIVULET_KERNELS_VECTOR_MATH_INL_H_
#endif

#include <cmath>
#include <cstddef>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace rivulet::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 float lanes, so that 16 virtual lanes divide into whole vectors on every target.
using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;
inline constexpr size_t kVirtualLanes = 16;

// One multiply-add of a scalar, rounded as the target's vector MulAdd rounds.
HWY_INLINE float MulAdd1(float a, float b, float c) {
#if HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_SSSE3 || \
    HWY_TARGET == HWY_SSE4
  return a * b + c;
#else
  return std::fma(a, b, c);
#endif
}

// Loads and stores `count` lanes (all of them where count >= Lanes). A lane's arithmetic is the
// same either way.
HWY_INLINE FloatVec LoadSome(const float* p, size_t count) {
  const FloatTag d;
  if (count >= hn::Lanes(d)) return hn::LoadU(d, p);
  return hn::MaskedLoad(hn::FirstN(d, count), d, p);
}
HWY_INLINE void StoreSome(FloatVec v, float* p, size_t count) {
  const FloatTag d;
  if (count >= hn::Lanes(d)) return hn::StoreU(v, d, p);
  hn::BlendedStore(v, hn::FirstN(d, count), d, p);
}

// erf(x), absolute error below 4e-7: x P(x^2) / Q(x^2) on [-4, 4], a least-maximum fit (Lawson
// iteration); beyond 4 it is 1 in float32.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Erf(D d, V x) {
  const V c = hn::Min(hn::Max(x, hn::Set(d, -4.0f)), hn::Set(d, 4.0f));
  const V t = hn::Mul(c, c);
  V p = hn::Set(d, 1.9867811913952284e-06f);
  p = hn::MulAdd(p, t, hn::Set(d, 0.000284567397260258f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.0038833882766331445f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.05310188447522088f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.19354601314103526f));
  p = hn::MulAdd(p, t, hn::Set(d, 1.1283791393018157f));
  V q = hn::Set(d, 3.742024258108186e-05f);
  q = hn::MulAdd(q, t, hn::Set(d, 0.0011855828236147386f));
  q = hn::MulAdd(q, t, hn::Set(d, 0.015207339612282154f));
  q = hn::MulAdd(q, t, hn::Set(d, 0.11535040445721914f));
  q = hn::MulAdd(q, t, hn::Set(d, 0.5048582436314173f));
  q = hn::MulAdd(q, t, hn::Set(d, 1.0f));
  return hn::Div(hn::Mul(c, p), q);
}

// GELU with erf: x / 2 (1 + erf(x / sqrt 2))   [Hendrycks & Gimpel 2016]
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Gelu(D d, V x) {
  const V half = hn::Mul(x, hn::Set(d, 0.5f));
  return hn::MulAdd(half, Erf(d, hn::Mul(x, hn::Set(d, 0.70710678118654752f))), half);
}

// 1 / (1 + exp(-x)), relative error below 3e-7 where the result is a normal number: from exp(-|x|),
// which neither overflows nor loses the digits of a result near 0. NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V small = hn::Exp(d, hn::Neg(hn::Abs(x)));
  const V y = hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), small, one), hn::Add(one, small));
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

// ln(1 + exp(x)) = max(x, 0) + ln(1 + exp(-|x|)): does not overflow, keeps the digits of small
// results. Relative error below 3e-7 where the result is a normal number. NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Softplus(D d, V x) {
  const V zero = hn::Zero(d);
  const V rest = hn::Log1p(d, hn::Exp(d, hn::Neg(hn::Abs(x))));
  return hn::Add(hn::IfThenElse(hn::Lt(x, zero), zero, x), rest);
}

// tanh(x), which beyond 10 is 1 in float32. NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ClampedTanh(D d, V x) {
  const V bounded = hn::Min(hn::Max(x, hn::Set(d, -10.0f)), hn::Set(d, 10.0f));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Tanh(d, bounded));
}

// Sum of 16 virtual lanes in a fixed tree: (l + 8), (l + 4), (l + 2), (l + 1).
HWY_INLINE float SumLanes(const float* HWY_RESTRICT lanes) {
  float s[8];
  for (int i = 0; i < 8; ++i) s[i] = lanes[i] + lanes[i + 8];
  for (int width = 4; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) s[i] = s[i] + s[i + width];
  }
  return s[0];
}

// Adds the addends 0 .. n - 1 to 16 virtual lanes: addend i goes to lane i % 16, so the sum is the
// same at every vector width. vector(i, acc) returns `acc` plus the addends from i on, one per lane
// of a vector; scalar(i, acc) returns `acc` plus addend i.
template <class VectorFn, class ScalarFn>
HWY_INLINE float FoldLanes(size_t n, const VectorFn& vector, const ScalarFn& scalar) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  HWY_ALIGN float sums[kVirtualLanes];
  const size_t whole = n / kVirtualLanes * kVirtualLanes;
  for (size_t part = 0; part < kVirtualLanes; part += lanes) {
    FloatVec acc = hn::Zero(d);
    for (size_t i = part; i < whole; i += kVirtualLanes) acc = vector(i, acc);
    hn::Store(acc, d, sums + part);
  }
  for (size_t i = whole; i < n; ++i) sums[i - whole] = scalar(i, sums[i - whole]);
  return SumLanes(sums);
}

// |x|^2
HWY_INLINE float SquaredNorm(const float* x, size_t n) {
  const FloatTag d;
  return FoldLanes(
      n,
      [&](size_t i, FloatVec acc) {
        const FloatVec v = hn::LoadU(d, x + i);
        return hn::MulAdd(v, v, acc);
      },
      [&](size_t i, float acc) { return MulAdd1(x[i], x[i], acc); });
}

// Mean and biased variance, in two passes.
struct Moments {
  float mean, variance;
};
HWY_INLINE Moments MeanAndVariance(const float* x, size_t n) {
  const FloatTag d;
  const float mean =
      FoldLanes(
          n, [&](size_t i, FloatVec acc) { return hn::Add(acc, hn::LoadU(d, x + i)); },
          [&](size_t i, float acc) { return acc + x[i]; }) /
      float(n);
  const FloatVec vmean = hn::Set(d, mean);
  const float variance =
      FoldLanes(
          n,
          [&](size_t i, FloatVec acc) {
            const FloatVec c = hn::Sub(hn::LoadU(d, x + i), vmean);
            return hn::MulAdd(c, c, acc);
          },
          [&](size_t i, float acc) { return MulAdd1(x[i] - mean, x[i] - mean, acc); }) /
      float(n);
  return {mean, variance};
}

}  // namespace rivulet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
