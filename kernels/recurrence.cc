// SPDX-License-Identifier: Apache-2.0
#include "kernels/recurrence.h"

namespace rivulet::kernels {

const char* CheckRecurrence(const RecurrenceArgs& args) {
  const bool delta = args.rule == UpdateRule::kDelta;
  const bool rank_one = args.rule == UpdateRule::kRankOne;
  if (args.tokens < 0) return "tokens >= 0";
  if (args.key_dim < 1 || args.value_dim < 1) return "key_dim, value_dim >= 1";
  if (args.w_dim != 0 && args.w_dim != 1 && args.w_dim != args.key_dim)
    return "w_dim is 0, 1 or key_dim";
  if (args.s == nullptr || args.y == nullptr) return "s and y must be set";
  if (args.q.data == nullptr || args.k.data == nullptr || args.v.data == nullptr)
    return "q, k and v must be set";
  if ((args.w.data != nullptr) != (args.w_dim > 0)) return "w is set where w_dim > 0, only there";
  if ((args.beta.data != nullptr) != delta) return "beta is set for kDelta, only there";
  if ((args.a.data != nullptr) != rank_one || (args.b.data != nullptr) != rank_one)
    return "a and b are set for kRankOne, only there";
  if (args.tokens > 1 && args.y_stride < size_t(args.value_dim)) return "y_stride >= value_dim";
  return nullptr;
}

}  // namespace rivulet::kernels
