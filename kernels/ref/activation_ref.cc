// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/activation.h"

namespace rivulet::kernels {
namespace {

double Apply(Activation kind, double x) {
  switch (kind) {
    case Activation::kIdentity:
      return x;
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kSoftplus:
      return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kSquaredRelu:
      return x < 0 ? 0 : x * x;
  }
  return x;
}

}  // namespace

void ActivationRef(const ActivationArgs& args) {
  for (size_t r = 0; r < size_t(args.rows); ++r) {
    for (size_t i = 0; i < size_t(args.n); ++i) {
      const double bias = args.bias == nullptr ? 0 : double{args.bias[i]};
      const double times =
          args.times == nullptr ? 1 : double{args.times[r * args.times_stride + i]};
      args.y[r * args.y_stride + i] =
          float(Apply(args.kind, double{args.x[r * args.x_stride + i]} + bias) * times);
    }
  }
}

}  // namespace rivulet::kernels
