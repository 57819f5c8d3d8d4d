// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "kernels/causal_conv.h"

namespace rivulet::kernels {

void CausalConvRef(const CausalConvArgs& args) {
  const int past = args.width - 1;
  for (int c = 0; c < args.channels; ++c) {
    // All inputs that this call can see: first those in the state, then those of the tokens.
    std::vector<float> inputs;
    inputs.reserve(size_t(past + args.tokens));
    for (int i = 0; i < past; ++i) inputs.push_back(args.state[i * args.channels + c]);
    for (int t = 0; t < args.tokens; ++t) {
      inputs.push_back(args.x[size_t(t) * args.x_stride + size_t(c)]);
      double sum = args.bias == nullptr ? 0 : double{args.bias[c]};
      for (int j = 0; j < args.width; ++j) {
        sum += double{args.weight[j * args.channels + c]} * double{inputs[size_t(t + j)]};
      }
      if (args.silu) sum /= 1 + std::exp(-sum);
      args.y[size_t(t) * args.y_stride + size_t(c)] = float(sum);
    }
    for (int i = 0; i < past; ++i) {
      args.state[i * args.channels + c] = inputs[size_t(args.tokens + i)];
    }
  }
}

}  // namespace rivulet::kernels
