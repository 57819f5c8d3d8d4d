// SPDX-License-Identifier: Apache-2.0
// The feature maps of feature_map.h inside kernels: one thread computes the features of one column
// of omega. Sums run over k in ascending order. Included by linear_attention*_cuda.cu only.
#pragma once

#include <cmath>

#include "kernels/cuda/common/device_cuda.h"
#include "kernels/feature_map.h"

namespace rivulet::kernels {

struct SineCosine {
  float sine, cosine;
};

// Within 2 ulp for |x| < 2^30. The library's sinf keeps an array in local memory for large x, which
// costs every thread a stack frame; here large x take a reduction in double.
__device__ __forceinline__ SineCosine SinCos(float x) {
  constexpr float kTwoOverPi = 0.636619772f;
  float n = rintf(x * kTwoOverPi), r;
  int quadrant;
  if (fabsf(x) < 8192.0f) {
    // pi / 2 in three parts; fused multiply-adds lose nothing of the products.
    r = fmaf(n, -1.57079601e+00f, x);
    r = fmaf(n, -3.13916473e-07f, r);
    r = fmaf(n, -5.39030253e-15f, r);
    quadrant = static_cast<int>(n);
  } else {
    const double turns = rint(static_cast<double>(x) * 0.63661977236758134308);
    double d = fma(turns, -1.57079632679489661923, static_cast<double>(x));
    d = fma(turns, -6.12323399573676603587e-17, d);
    r = static_cast<float>(d);
    // (For an infinite x, r is NaN and any quadrant will do.)
    quadrant = static_cast<int>(turns - 4 * rint(turns / 4));
  }
  const float s = r * r;
  float sine = fmaf(s, -1.95152959e-4f, 8.33216087e-3f);
  sine = fmaf(s, sine, -1.66666546e-1f);
  sine = fmaf(s * r, sine, r);
  float cosine = fmaf(s, 2.44331571e-5f, -1.38873162e-3f);
  cosine = fmaf(s, cosine, 4.16666456e-2f);
  cosine = fmaf(s * s, cosine, fmaf(s, -0.5f, 1.0f));
  const bool swap = (quadrant & 1) != 0;
  const float a = swap ? cosine : sine, b = swap ? sine : cosine;
  return {(quadrant & 2) != 0 ? -a : a, ((quadrant + 1) & 2) != 0 ? -b : b};
}

__device__ __forceinline__ float EluFeature(float x) { return x > 0 ? x + 1.0f : expf(x); }

// Features of column `c` of omega, from u = x . omega[c] and square = x . x, into phi [features].
__device__ __forceinline__ void FeaturesOf(const FeatureMapArgs& map, float u, float square, int c,
                                           float* phi) {
  const int n = map.columns;
  switch (map.kind) {
    case FeatureMapKind::kElu:
      break;
    case FeatureMapKind::kSmoothedRandomFourier:
    case FeatureMapKind::kRandomFourier: {
      const SineCosine v = SinCos(u * map.x_scale);
      phi[c] = v.cosine * map.out_scale;
      phi[n + c] = v.sine * map.out_scale;
      if (map.kind == FeatureMapKind::kSmoothedRandomFourier && c == 0) phi[2 * n] = map.smoothing;
      break;
    }
    case FeatureMapKind::kFavor: {
      const float scaled = u * map.x_scale;
      const float h = square * (map.x_scale * map.x_scale) * 0.5f + map.out_scale;
      phi[c] = expf(scaled - h);
      phi[n + c] = expf(-scaled - h);
      break;
    }
    case FeatureMapKind::kGeneralizedRandomRelu: {
      const float scaled = u * map.x_scale;
      phi[c] = scaled < 0 ? 0.0f : scaled;  // a NaN stays one
      break;
    }
    case FeatureMapKind::kRfa: {
      const float norm = sqrtf(square);
      const SineCosine v = SinCos(u * (1.0f / (norm < 1e-6f ? 1e-6f : norm)));
      phi[c] = v.sine * map.out_scale;
      phi[n + c] = v.cosine * map.out_scale;
      break;
    }
  }
}

// The features of column `c` from x [key_dim] itself. `omega`: of this head.
__device__ __forceinline__ void ProjectedFeature(const FeatureMapArgs& map,
                                                 const float* __restrict__ omega, const float* x,
                                                 int c, float* phi) {
  float u = 0, square = 0;
  for (int k = 0; k < map.key_dim; ++k) {
    const float v = x[k];
    u = fmaf(v, __ldg(omega + At(k, map.columns, c)), u);
    square = fmaf(v, v, square);
  }
  FeaturesOf(map, u, square, c, phi);
}

// g = sigmoid(x), a = 1 - g = sigmoid(-x). Both come from the exponential, because 1 - g has no
// digits left where g is near 1. Without a gate g = a = 1, and multiplying by 1 changes nothing.
struct GateFactors {
  float g, a;
};
__device__ __forceinline__ GateFactors GateOf(float x) {
  const float small = expf(-fabsf(x));  // at most 1
  const float near = 1.0f / (1.0f + small), far = small / (1.0f + small);
  return x > 0 ? GateFactors{near, far} : GateFactors{far, near};
}

}  // namespace rivulet::kernels
