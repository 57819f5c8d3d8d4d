// SPDX-License-Identifier: Apache-2.0
#include "kernels/softmax_attention.h"

namespace rivulet::kernels {

const char* CheckSoftmaxAttention(const SoftmaxAttentionArgs& args) {
  if (args.tokens < 0) return "tokens >= 0";
  if (args.key_dim < 1 || args.value_dim < 1 || args.queries < 1)
    return "key_dim, value_dim, queries >= 1";
  if (args.position < 0 || args.window < 0) return "position, window >= 0";
  if (args.ring != 0 && (args.window == 0 || args.ring < RingBlocks(args.window)))
    return "a ring has a window, and blocks for it";
  if (args.q.data == nullptr || args.k.data == nullptr || args.v.data == nullptr)
    return "q, k and v must be set";
  if (args.cache == nullptr || args.y == nullptr || args.scratch == nullptr)
    return "cache, y and scratch must be set";
  if (args.block_stride < CacheFloats(args.key_dim, args.value_dim, args.type))
    return "block_stride >= the floats of a head";
  if (args.tokens > 1 && args.y_stride < size_t(args.queries) * size_t(args.value_dim))
    return "y_stride >= queries * value_dim";
  return nullptr;
}

size_t SoftmaxAttentionScratch(int queries, int key_dim, int value_dim, CacheType type) {
  // Maximum and sum of each row of a block; scores and values of eight rows; a widened block.
  const size_t rows = 8 * (size_t{kCacheBlock} + size_t(value_dim)),
               widened = type == CacheType::kF32 ? 0 : 2 * CacheFloats(key_dim, value_dim, type);
  return size_t{2 * kCacheBlock} * size_t(queries) + rows + widened;
}

}  // namespace rivulet::kernels
