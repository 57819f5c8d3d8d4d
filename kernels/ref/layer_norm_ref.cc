// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>

#include "kernels/layer_norm.h"

namespace rivulet::kernels {

void LayerNormRef(const LayerNormArgs& args) {
  for (int r = 0; r < args.rows; ++r) {
    const float* x = args.x + size_t(r) * size_t(args.ld);
    float* y = args.y + size_t(r) * size_t(args.ld);
    double mean = 0, variance = 0;
    for (int i = 0; i < args.n; ++i) mean += double{x[i]} / args.n;
    for (int i = 0; i < args.n; ++i) variance += (x[i] - mean) * (x[i] - mean) / args.n;
    const double scale = 1 / std::sqrt(variance + double{args.eps});
    for (int i = 0; i < args.n; ++i) {
      y[i] = float((x[i] - mean) * scale * double{args.weight[i]} + double{args.bias[i]});
    }
    for (int i = args.n; i < args.ld; ++i) y[i] = 0;
  }
}

}  // namespace rivulet::kernels
