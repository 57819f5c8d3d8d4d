// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/half.h"
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
  // The offsets of key and value.
  size_t k(size_t i) const { return i * kCacheBlock + row; }
  size_t v(const SoftmaxAttentionArgs& args, size_t i) const {
    return key_dim * kCacheBlock + row * size_t(args.value_dim) + i;
  }
  float* data;
  size_t row, key_dim;
};

void Put(const SoftmaxAttentionArgs& args, float* block, size_t at, float x) {
  auto* const halves = reinterpret_cast<uint16_t*>(block);
  if (args.type == CacheType::kF32) block[at] = x;
  if (args.type == CacheType::kF16) halves[at] = F32ToF16(x);
  if (args.type == CacheType::kBf16) halves[at] = F32ToBf16(x);
}

double Get(const SoftmaxAttentionArgs& args, const float* block, size_t at) {
  const auto* const halves = reinterpret_cast<const uint16_t*>(block);
  if (args.type == CacheType::kF32) return block[at];
  return args.type == CacheType::kF16 ? F16ToF32(halves[at]) : Bf16ToF32(halves[at]);
}

void Attend(const SoftmaxAttentionArgs& args, int64_t position, const float* q, float* y) {
  const int64_t first = args.window == 0 ? 0 : std::max<int64_t>(0, position - args.window + 1);
  std::vector<double> scores;
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t p = first; p <= position; ++p) {
    double score = 0;
    const Place place(args, p);
    for (int i = 0; i < args.key_dim; ++i) {
      score += double{q[i]} * Get(args, place.data, place.k(size_t(i)));
    }
    scores.push_back(score * args.scale);
    largest = std::max(largest, scores.back());
  }
  std::vector<double> out(size_t(args.value_dim));
  for (int64_t p = first; p <= position; ++p) {
    const double weight = std::exp(scores[size_t(p - first)] - largest);
    sum += weight;
    const Place place(args, p);
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] += weight * Get(args, place.data, place.v(args, i));
    }
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
    for (size_t i = 0; i < size_t(args.key_dim); ++i) Put(args, place.data, place.k(i), k[i]);
    for (size_t i = 0; i < size_t(args.value_dim); ++i) {
      Put(args, place.data, place.v(args, i), v[i]);
    }
    for (int h = 0; h < args.queries; ++h) {
      Attend(args, position, args.q.data + t * args.q.stride + h * args.key_dim,
             args.y + t * args.y_stride + h * args.value_dim);
    }
  }
}

}  // namespace rivulet::kernels
