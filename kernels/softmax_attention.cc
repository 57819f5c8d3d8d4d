// SPDX-License-Identifier: Apache-2.0
#include "kernels/softmax_attention.h"

namespace rivulet::kernels {
namespace {

// Calls f(value in the cache, number of the value) for each value of the tokens from `first` on.
template <class Value, class Fn>
void ForEachValue(const SoftmaxAttentionArgs& args, int first, const Fn& f) {
  const size_t keys = size_t(args.key_dim), values = size_t(args.value_dim);
  for (int t = first; t < args.tokens; ++t) {
    const int64_t block = (args.position + t) / kCacheBlock;
    const auto row = size_t((args.position + t) % kCacheBlock);
    auto* const begin = reinterpret_cast<Value*>(
        args.cache + args.block_stride * size_t(args.ring > 0 ? block % args.ring : block));
    const size_t number = size_t(t) * (keys + values);
    for (size_t i = 0; i < keys; ++i) f(begin[i * kCacheBlock + row], number + i);
    Value* const v = begin + keys * kCacheBlock + row * values;
    for (size_t i = 0; i < values; ++i) f(v[i], number + keys + i);
  }
}

// Calls f with a value of the cache's type; halves are handled as bits.
template <class Fn>
void OfType(const SoftmaxAttentionArgs& args, const Fn& f) {
  args.type == CacheType::kF32 ? f(float()) : f(uint16_t());
}

}  // namespace

void KeepPlaces(const SoftmaxAttentionArgs& args, float* kept) {
  OfType(args, [&](auto type) {
    using Value = decltype(type);
    auto* const to = reinterpret_cast<Value*>(kept);
    ForEachValue<Value>(args, 0, [to](Value& value, size_t i) { to[i] = value; });
  });
}

void PutBackPlaces(const SoftmaxAttentionArgs& args, int first, const float* kept) {
  OfType(args, [&](auto type) {
    using Value = decltype(type);
    const auto* const from = reinterpret_cast<const Value*>(kept);
    ForEachValue<Value>(args, first, [from](Value& value, size_t i) { value = from[i]; });
  });
}

size_t SoftmaxAttentionScratch(int queries, int key_dim, int value_dim, CacheType type) {
  // Maximum and sum of each row of a block; scores and values of eight rows; a widened block.
  const size_t rows = 8 * (size_t{kCacheBlock} + size_t(value_dim)),
               widened = type == CacheType::kF32 ? 0 : 2 * CacheFloats(key_dim, value_dim, type);
  return size_t{2 * kCacheBlock} * size_t(queries) + rows + widened;
}

}  // namespace rivulet::kernels
