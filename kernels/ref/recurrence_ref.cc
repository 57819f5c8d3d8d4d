// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "kernels/recurrence.h"

namespace rivulet::kernels {
namespace {

// sum_i x[i] S[i][column]
double Read(const std::vector<double>& s, const float* x, const RecurrenceArgs& args,
            size_t column) {
  double sum = 0;
  for (size_t i = 0; i < size_t(args.key_dim); ++i) {
    sum += double{x[i]} * s[i * size_t(args.value_dim) + column];
  }
  return sum;
}

}  // namespace

void RecurrenceRef(const RecurrenceArgs& args) {
  const size_t keys = size_t(args.key_dim), values = size_t(args.value_dim);
  std::vector<double> s(args.s, args.s + keys * values), before(values), added(values);
  for (size_t t = 0; t < size_t(args.tokens); ++t) {
    const auto at = [&](const TokenVectors& x) { return x.data + t * x.stride; };
    if (args.rule == UpdateRule::kRankOne) {
      for (size_t c = 0; c < values; ++c) before[c] = Read(s, at(args.a), args, c);
    }
    for (size_t i = 0; i < keys && args.w_dim > 0; ++i) {
      const double w = double{at(args.w)[args.w_dim == 1 ? 0 : i]};
      for (size_t c = 0; c < values; ++c) s[i * values + c] *= w;
    }
    for (size_t c = 0; c < values; ++c) {
      added[c] = double{at(args.v)[c]};
      if (args.rule == UpdateRule::kDelta) {
        added[c] = double{*at(args.beta)} * (added[c] - Read(s, at(args.k), args, c));
      }
    }
    for (size_t i = 0; i < keys; ++i) {
      for (size_t c = 0; c < values; ++c) {
        s[i * values + c] += double{at(args.k)[i]} * added[c];
        if (args.rule == UpdateRule::kRankOne) {
          s[i * values + c] += double{at(args.b)[i]} * before[c];
        }
      }
    }
    for (size_t c = 0; c < values; ++c) {
      args.y[t * args.y_stride + c] = float(Read(s, at(args.q), args, c));
    }
  }
  for (size_t i = 0; i < s.size(); ++i) args.s[i] = float(s[i]);
}

}  // namespace rivulet::kernels
