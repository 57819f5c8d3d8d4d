// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/decay.h"

namespace rivulet::kernels {
namespace {

double Apply(DecayKind kind, double z) {
  switch (kind) {
    case DecayKind::kIdentity:
      return z;
    case DecayKind::kSoftplus:
      return z > 0 ? z + std::log1p(std::exp(-z)) : std::log1p(std::exp(z));
    case DecayKind::kSigmoid:
      return 1 / (1 + std::exp(-z));
  }
  return z;
}

}  // namespace

void DecayRef(const DecayArgs& args) {
  for (size_t r = 0; r < size_t(args.rows); ++r) {
    for (size_t i = 0; i < size_t(args.n); ++i) {
      double z = double{args.x[r * args.x_stride + i]};
      if (args.bias != nullptr) z += double{args.bias[i]};
      const double exponent = -double{args.scale[i]} * Apply(args.kind, args.negate ? -z : z);
      args.y[r * args.y_stride + i] = float(std::exp(std::max(exponent, double{args.floor})));
    }
  }
}

}  // namespace rivulet::kernels
