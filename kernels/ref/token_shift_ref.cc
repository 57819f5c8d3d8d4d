// SPDX-License-Identifier: Apache-2.0
#include "kernels/token_shift.h"

namespace rivulet::kernels {

void TokenShiftRef(const TokenShiftArgs& args) {
  for (size_t t = 0; t < size_t(args.tokens); ++t) {
    for (size_t i = 0; i < size_t(args.n); ++i) {
      const double x = double{args.x[t * args.x_stride + i]};
      for (size_t m = 0; m < size_t(args.mixes); ++m) {
        args.y[m * args.mix_stride + t * args.y_stride + i] =
            float(x + (double{args.state[i]} - x) * double{args.mix[m * size_t(args.n) + i]});
      }
      args.state[i] = float(x);
    }
  }
}

}  // namespace rivulet::kernels
