// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/linear_attention.h"

namespace rivulet::kernels {

void LinearAttentionRef(const LinearAttentionArgs& args) {
  const size_t features = size_t(args.features), value_dim = size_t(args.value_dim);
  std::vector<double> q(features), k(features), s(args.s, args.s + features * value_dim),
      z(args.z, args.z + features);
  for (size_t t = 0; t < size_t(args.tokens); ++t) {
    FeatureMapRef(args.map, args.query + t * args.ld, q.data());
    FeatureMapRef(args.map, args.key + t * args.ld, k.data());
    const double g = args.gate ? 1 / (1 + std::exp(-double{args.gate[t * args.ld]})) : 1;
    const double a = args.gate ? 1 / (1 + std::exp(double{args.gate[t * args.ld]})) : 1;
    double dot = 0;
    for (size_t f = 0; f < features; ++f) {
      z[f] = g * z[f] + a * k[f];
      dot += q[f] * z[f];
      for (size_t v = 0; v < value_dim; ++v) {
        s[f * value_dim + v] =
            g * s[f * value_dim + v] + a * k[f] * double{args.value[t * args.ld + v]};
      }
    }
    const double divisor =
        args.clamp ? std::max(dot, double{args.normalizer}) : dot + double{args.normalizer};
    for (size_t v = 0; v < value_dim; ++v) {
      double sum = 0;
      for (size_t f = 0; f < features; ++f) sum += q[f] * s[f * value_dim + v];
      args.out[t * args.ld_out + v] = float(sum / divisor);
    }
  }
  for (size_t i = 0; i < s.size(); ++i) args.s[i] = float(s[i]);
  for (size_t f = 0; f < features; ++f) args.z[f] = float(z[f]);
}

}  // namespace rivulet::kernels
