// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/softmax_attention.h"

namespace rivulet::kernels {
namespace {

// The block of a position, and its row within the block.
struct Place {
  Place(const SoftmaxAttentionArgs& args, int64_t position)
      : row(size_t(position % kCacheBlock)), key_dim(size_t(args.key_dim)) {
    const int64_t block = position / kCacheBlock;
    data = args.cache + args.block_stride * size_t(args.ring > 0 ? block % args.ring : block);
  }
  float& k(size_t i) const { return data[i * kCacheBlock + row]; }
  float* v(int value_dim) const { return data + (key_dim * kCacheBlock + row * size_t(value_dim)); }
  float* data;
  size_t row, key_dim;
};

void Attend(const SoftmaxAttentionArgs& args, int64_t position, const float* q, float* y) {
  const int64_t first = args.window == 0 ? 0 : std::max<int64_t>(0, position - args.window + 1);
  std::vector<double> scores;
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t p = first; p <= position; ++p) {
    double score = 0;
    for (int i = 0; i < args.key_dim; ++i) score += double{q[i]} * Place(args, p).k(size_t(i));
    scores.push_back(score * args.scale);
    largest = std::max(largest, scores.back());
  }
  std::vector<double> out(size_t(args.value_dim));
  for (int64_t p = first; p <= position; ++p) {
    const double weight = std::exp(scores[size_t(p - first)] - largest);
    sum += weight;
    for (size_t i = 0; i < out.size(); ++i) out[i] += weight * Place(args, p).v(args.value_dim)[i];
  }
  for (size_t i = 0; i < out.size(); ++i) y[i] = float(out[i] / sum);
}

}  // namespace

void SoftmaxAttentionRef(const SoftmaxAttentionArgs& args) {
  for (size_t t = 0; t < size_t(args.tokens); ++t) {
    const int64_t position = args.position + int64_t(t);
    const Place place(args, position);
    const float* const k = args.k.data + t * args.k.stride;
    const float* const v = args.v.data + t * args.v.stride;
    for (size_t i = 0; i < size_t(args.key_dim); ++i) place.k(i) = k[i];
    std::copy(v, v + args.value_dim, place.v(args.value_dim));
    for (int h = 0; h < args.queries; ++h) {
      Attend(args, position, args.q.data + t * args.q.stride + h * args.key_dim,
             args.y + t * args.y_stride + h * args.value_dim);
    }
  }
}

}  // namespace rivulet::kernels
