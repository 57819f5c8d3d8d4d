// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/feature_map.h"

namespace rivulet::kernels {
namespace {

std::vector<double> Project(const FeatureMapArgs& args, const float* x, double x_scale) {
  std::vector<double> u(static_cast<size_t>(args.columns));
  for (int c = 0; c < args.columns; ++c) {
    for (int k = 0; k < args.key_dim; ++k) {
      u[size_t(c)] +=
          double{x[k]} * x_scale * double{args.omega[size_t(k) * size_t(args.columns) + size_t(c)]};
    }
  }
  return u;
}

}  // namespace

void FeatureMapRef(const FeatureMapArgs& args, const float* x, double* out) {
  const int n = args.columns;
  double square = 0;
  for (int k = 0; k < args.key_dim; ++k) square += double{x[k]} * double{x[k]};
  const double x_scale = args.kind == FeatureMapKind::kRfa ? 1 / std::max(std::sqrt(square), 1e-6)
                                                           : double{args.x_scale};
  const std::vector<double> u = Project(args, x, x_scale);
  const double h = square * x_scale * x_scale / 2 + double{args.out_scale};
  for (int c = 0; c < n; ++c) {
    const double v = u[size_t(c)];
    switch (args.kind) {
      case FeatureMapKind::kElu:
        break;
      case FeatureMapKind::kRandomFourier:
      case FeatureMapKind::kSmoothedRandomFourier:
        out[c] = std::cos(v) * double{args.out_scale};
        out[n + c] = std::sin(v) * double{args.out_scale};
        break;
      case FeatureMapKind::kFavor:
        out[c] = std::exp(v - h);
        out[n + c] = std::exp(-v - h);
        break;
      case FeatureMapKind::kGeneralizedRandomRelu:
        out[c] = std::max(v, 0.0);
        break;
      case FeatureMapKind::kRfa:
        out[c] = std::sin(v) * double{args.out_scale};
        out[n + c] = std::cos(v) * double{args.out_scale};
        break;
    }
  }
  if (args.kind == FeatureMapKind::kSmoothedRandomFourier) out[2 * n] = double{args.smoothing};
  if (args.kind == FeatureMapKind::kElu) {
    for (int k = 0; k < args.key_dim; ++k)
      out[k] = x[k] > 0 ? double{x[k]} + 1 : std::exp(double{x[k]});
  }
}

}  // namespace rivulet::kernels
