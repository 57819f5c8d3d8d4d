// SPDX-License-Identifier: Apache-2.0
// The functions of activation.h and decay.h for one value. Included by .cu files only.
#pragma once

#include "kernels/activation.h"
#include "kernels/cuda/common/device_cuda.h"
#include "kernels/decay.h"

namespace rivulet::kernels {

// From exp(-|x|), which neither overflows nor loses the digits of a result near 0.
__device__ __forceinline__ float SigmoidOf(float x) {
  const float small = expf(-fabsf(x));
  return (x < 0 ? small : 1.0f) / (1.0f + small);
}
__device__ __forceinline__ float SoftplusOf(float x) {
  return (x < 0 ? 0.0f : x) + log1pf(expf(-fabsf(x)));
}
__device__ __forceinline__ float SiluOf(float x) { return x * SigmoidOf(x); }

__device__ __forceinline__ float SquaredReluOf(float x) {
  const float positive = x < 0 ? 0.0f : x;  // a NaN stays one
  return positive * positive;
}

__device__ __forceinline__ float ActivationOf(Activation kind, float x) {
  switch (kind) {
    case Activation::kIdentity:
      return x;
    case Activation::kSigmoid:
      return SigmoidOf(x);
    case Activation::kSilu:
      return SiluOf(x);
    case Activation::kSoftplus:
      return SoftplusOf(x);
    case Activation::kTanh:
      return tanhf(x);
    case Activation::kSquaredRelu:
      return SquaredReluOf(x);
  }
  return x;
}

// exp(max(floor, -scale f(z))); a NaN stays one.
__device__ __forceinline__ float DecayOf(DecayKind kind, float z, float scale, float floor) {
  const float f = kind == DecayKind::kSoftplus  ? SoftplusOf(z)
                  : kind == DecayKind::kSigmoid ? SigmoidOf(z)
                                                : z;
  const float exponent = -(scale * f);
  return expf(exponent < floor ? floor : exponent);
}

}  // namespace rivulet::kernels
