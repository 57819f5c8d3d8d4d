// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/group_norm.h"

namespace rivulet::kernels {

void GroupNormRef(const GroupNormArgs& args) {
  for (size_t r = 0; r < size_t(args.rows); ++r) {
    for (size_t g = 0; g < size_t(args.groups); ++g) {
      const size_t first = g * size_t(args.size);
      const float* x = args.x + r * args.x_stride + first;
      float* y = args.y + r * args.y_stride + first;
      double mean = 0, variance = 0;
      for (int i = 0; i < args.size; ++i) mean += double{x[i]} / args.size;
      for (int i = 0; i < args.size; ++i) variance += (x[i] - mean) * (x[i] - mean) / args.size;
      const double scale = 1 / std::sqrt(variance + double{args.eps});
      for (size_t i = 0; i < size_t(args.size); ++i) {
        const double weight = args.weight == nullptr ? 1 : double{args.weight[first + i]};
        const double bias = args.bias == nullptr ? 0 : double{args.bias[first + i]};
        y[i] = float((x[i] - mean) * scale * weight + bias);
      }
    }
  }
}

}  // namespace rivulet::kernels
