// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/rms_norm.h"

namespace rivulet::kernels {

void RmsNormRef(const RmsNormArgs& args) {
  for (size_t r = 0; r < size_t(args.rows); ++r) {
    for (size_t g = 0; g < size_t(args.groups); ++g) {
      const float* x = args.x + r * args.x_stride + g * size_t(args.size);
      float* y = args.y + r * args.y_stride + g * size_t(args.size);
      double square = 0;
      for (int i = 0; i < args.size; ++i) square += double{x[i]} * double{x[i]} / args.size;
      const double scale = 1 / std::sqrt(square + double{args.eps});
      for (size_t i = 0; i < size_t(args.size); ++i) {
        const double weight =
            args.weight == nullptr ? 1 : double{args.weight[g * args.weight_stride + i]};
        y[i] = float(double{x[i]} * scale * weight);
      }
    }
  }
}

}  // namespace rivulet::kernels
