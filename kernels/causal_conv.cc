// SPDX-License-Identifier: Apache-2.0
#include "kernels/causal_conv.h"

namespace rivulet::kernels {

const char* CheckCausalConv(const CausalConvArgs& args) {
  if (args.tokens < 0 || args.channels < 1) return "tokens >= 0 and channels >= 1";
  if (args.width < 1 || args.width > kMaxConvWidth) return "width is 1 to 8";
  if (args.weight == nullptr) return "weight must be set";
  if (args.width > 1 && args.state == nullptr) return "state must be set where width > 1";
  if (args.tokens > 0 && (args.x == nullptr || args.y == nullptr)) return "x and y must be set";
  if (args.tokens > 1 && args.x_stride < size_t(args.channels)) return "x_stride >= channels";
  if (args.tokens > 1 && args.y_stride < size_t(args.channels)) return "y_stride >= channels";
  return nullptr;
}

}  // namespace rivulet::kernels
