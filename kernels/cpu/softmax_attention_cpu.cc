// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/softmax_attention_cpu.cc"
#include "hwy/foreach_target.h"
// (must stand before highway.h)
#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/vector_math-inl.h"
#include "kernels/half.h"
#include "kernels/softmax_attention.h"

HWY_BEFORE_NAMESPACE();
namespace rivulet::kernels::HWY_NAMESPACE {

constexpr int kRows = 8;  // rows of queries that pass over a block together

// Up to kRows rows; a row is a query head of a token.
struct QueryRows {
  int count = 0;
  const float* q[kRows];
  float* y[kRows];          // sum so far of p v
  float* maximum[kRows];    // [1] maximum so far; behind all maxima the sums of p
  int64_t position[kRows];  // of the token
};

// `count` values (all lanes where count >= Lanes) as they are cached, widened.
template <class Kept>
HWY_INLINE FloatVec LoadKept(const Kept* p, size_t count) {
  const FloatTag d;
  if constexpr (std::is_same_v<Kept, float>) {
    return LoadSome(p, count);
  } else {
    const hn::Rebind<Kept, FloatTag> halves;
    if (count >= hn::Lanes(d)) return hn::PromoteTo(d, hn::LoadU(halves, p));
    HWY_ALIGN Kept some[kVirtualLanes];
    std::memset(some, 0, sizeof(some));
    std::memcpy(some, p, count * sizeof(Kept));
    return hn::PromoteTo(d, hn::Load(halves, some));
  }
}

// c = a B for kTile rows and kVecs vectors of columns; B is [k, ldb]. Sums in index order. `next`,
// if not null, is [k, ldb] that is needed next: it is requested from memory row by row.
template <int kTile, int kVecs, class Kept>
HWY_INLINE void MultiplyTile(const float* const* a, const Kept* b, const Kept* next, size_t ldb,
                             size_t k, float* const* c, size_t column, size_t count) {
  constexpr size_t kLine = 64 / sizeof(Kept);
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  FloatVec acc[kTile][kVecs];
  for (auto& row : acc) {
    for (FloatVec& sum : row) sum = hn::Zero(d);
  }
  for (size_t i = 0; i < k; ++i) {
    if (next != nullptr) {
      for (size_t j = 0; j < ldb; j += kLine) hwy::Prefetch(next + i * ldb + j);
    }
    hwy::Prefetch(b + i * ldb + column + kVecs * lanes);  // of the tile behind this one
    FloatVec columns[kVecs];
    for (int j = 0; j < kVecs; ++j) {
      columns[j] = LoadKept(b + i * ldb + column + size_t(j) * lanes, count);
    }
    for (int r = 0; r < kTile; ++r) {
      const FloatVec x = hn::Set(d, a[r][i]);
      for (int j = 0; j < kVecs; ++j) acc[r][j] = hn::MulAdd(x, columns[j], acc[r][j]);
    }
  }
  for (int r = 0; r < kTile; ++r) {
    for (int j = 0; j < kVecs; ++j) {
      StoreSome(acc[r][j], c[r] + column + size_t(j) * lanes, count);
    }
  }
}

// Columns from `column` on, kVecs vectors at a time, then one fewer and so on.
template <int kTile, int kVecs, class Kept>
HWY_INLINE void MultiplyColumns(const float* const* a, const Kept* b, const Kept* next, size_t ldb,
                                size_t k, float* const* c, size_t column, size_t n) {
  const size_t lanes = hn::Lanes(FloatTag());
  for (; column + kVecs * lanes <= n; column += kVecs * lanes) {
    MultiplyTile<kTile, kVecs>(a, b, next, ldb, k, c, column, lanes);
    next = nullptr;
  }
  if constexpr (kVecs > 1) {
    MultiplyColumns<kTile, kVecs - 1>(a, b, next, ldb, k, c, column, n);
  } else if (column < n) {
    MultiplyTile<kTile, 1>(a, b, next, ldb, k, c, column, n - column);
  }
}

// AVX-512 has 32 registers, AVX2 has 16.
constexpr bool kManyRegisters = HWY_MAX_BYTES >= 64;

template <class Kept>
void Multiply(int rows, const float* const* a, const Kept* b, const Kept* next, size_t ldb,
              size_t k, float* const* c, size_t n) {
  int row = 0;
  if constexpr (kManyRegisters) {
    for (; row + 8 <= rows; row += 8, next = nullptr) {
      MultiplyColumns<8, 2>(a + row, b, next, ldb, k, c + row, 0, n);
    }
  }
  for (; row + 4 <= rows; row += 4, next = nullptr) {
    MultiplyColumns<4, kManyRegisters ? 4 : 3>(a + row, b, next, ldb, k, c + row, 0, n);
  }
  for (; row + 2 <= rows; row += 2, next = nullptr) {
    MultiplyColumns<2, 4>(a + row, b, next, ldb, k, c + row, 0, n);
  }
  if (row < rows) MultiplyColumns<1, 4>(a + row, b, next, ldb, k, c + row, 0, n);
}

// exp(x); NaN stays NaN.
HWY_INLINE FloatVec ExpOrNan(FloatVec x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(FloatTag(), x));
}

// Scores to p, in place; positions outside [first, end) of the block are not seen. Returns the
// maximum, -infinity where none is seen, and the sum.
struct BlockSum {
  float maximum, sum;
};
BlockSum Weigh(float* scores, float scale, int64_t first, int64_t end) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  const bool all_seen = end - first == kCacheBlock;
  FloatVec largest = hn::Set(d, kNever);
  for (size_t i = 0; i < kCacheBlock; i += lanes) {
    FloatVec score = hn::Mul(hn::LoadU(d, scores + i), hn::Set(d, scale));
    if (!all_seen) {
      const FloatVec index = hn::Iota(d, float(i));
      const auto seen =
          hn::And(hn::Ge(index, hn::Set(d, float(first))), hn::Lt(index, hn::Set(d, float(end))));
      score = hn::IfThenElse(seen, score, hn::Set(d, kNever));
    }
    hn::StoreU(score, d, scores + i);
    largest = hn::Max(largest, score);
  }
  const float maximum = hn::GetLane(hn::MaxOfLanes(d, largest));
  if (maximum == kNever) return {kNever, 0};
  for (size_t i = 0; i < kCacheBlock; i += lanes) {
    const FloatVec x = hn::Sub(hn::LoadU(d, scores + i), hn::Set(d, maximum));
    hn::StoreU(ExpOrNan(x), d, scores + i);
  }
  const float sum = FoldLanes(
      kCacheBlock, [&](size_t i, FloatVec acc) { return hn::Add(acc, hn::LoadU(d, scores + i)); },
      [](size_t, float acc) { return acc; });
  return {maximum, sum};
}

// `added` is the product of a row's weights and all values of a block. Removes the effect of the
// positions outside [first, end). Their weight is 0, but 0 times a value that is not finite is NaN,
// and the signs of such values decide whether a sum of -0 keeps its sign.
template <class Kept>
void LeaveOutUnseen(const float* weights, const Kept* values, size_t n, int64_t first, int64_t end,
                    float* added) {
  const FloatTag d;
  bool is_nan = false;
  const auto without_signed_zeros = [&] {
    for (size_t i = 0; i < n; i += hn::Lanes(d)) {
      const size_t count = std::min(hn::Lanes(d), n - i);
      const FloatVec sum = hn::Add(LoadSome(added + i, count), hn::Zero(d));
      is_nan = is_nan || !hn::AllFalse(d, hn::IsNaN(sum));
      StoreSome(sum, added + i, count);
    }
  };
  without_signed_zeros();
  if (!is_nan) return;
  const float* const seen = weights + first;
  const Kept* const none = nullptr;
  Multiply(1, &seen, values + size_t(first) * n, none, n, size_t(end - first), &added, n);
  without_signed_zeros();
}

// Joins a block to the row's sums so far, relative to the larger of both maxima. A block of which
// the row sees nothing changes nothing.
void Join(const BlockSum& block, const float* values, size_t n, float* maximum, float* sum,
          float* y) {
  if (block.maximum == -std::numeric_limits<float>::infinity()) return;
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  const float larger = std::max(*maximum, block.maximum);
  HWY_ALIGN float factors[kVirtualLanes] = {*maximum - larger, block.maximum - larger};
  for (size_t i = 0; i < 2; i += lanes) {
    hn::Store(ExpOrNan(hn::Load(d, factors + i)), d, factors + i);
  }
  const float before = factors[0], added = factors[1];
  *maximum = larger;
  *sum = MulAdd1(*sum, before, block.sum * added);
  for (size_t i = 0; i < n; i += lanes) {
    const size_t count = std::min(lanes, n - i);
    const FloatVec more = hn::Mul(LoadSome(values + i, count), hn::Set(d, added));
    StoreSome(hn::MulAdd(LoadSome(y + i, count), hn::Set(d, before), more), y + i, count);
  }
}

// For each of `rows`: maximum and sum of the weights of one block, whose first position is `base`,
// and the block's weighted values in `added`. `scores`: [kRows, kCacheBlock]. `next`: the block
// that is needed next, or null.
template <class Kept>
void SumKept(const SoftmaxAttentionArgs& args, const QueryRows& rows, int64_t base,
             const Kept* block, const Kept* next, float* scores, BlockSum* sums,
             float* const* added) {
  const size_t keys = size_t(args.key_dim), values = size_t(args.value_dim);
  float* row_scores[kRows];
  for (int r = 0; r < rows.count; ++r) row_scores[r] = scores + r * kCacheBlock;
  Multiply(rows.count, rows.q, block, next, kCacheBlock, keys, row_scores, kCacheBlock);
  int64_t first[kRows], end[kRows];  // positions of the block that a row sees
  for (int r = 0; r < rows.count; ++r) {
    const int64_t position = rows.position[r] - base;
    const int64_t oldest = args.window == 0 ? 0 : position - args.window + 1;
    first[r] = std::clamp<int64_t>(oldest, 0, kCacheBlock);
    end[r] = std::clamp<int64_t>(position + 1, 0, kCacheBlock);
    sums[r] = Weigh(row_scores[r], args.scale, first[r], end[r]);
    // The product includes this row, so its weights must be finite.
    if (sums[r].sum == 0) std::fill_n(row_scores[r], kCacheBlock, 0.0f);
  }
  const Kept* const block_values = block + keys * kCacheBlock;
  const Kept* const next_values = next == nullptr ? nullptr : next + keys * kCacheBlock;
  Multiply(rows.count, row_scores, block_values, next_values, values, kCacheBlock, added, values);
  for (int r = 0; r < rows.count; ++r) {
    if (sums[r].sum == 0 || end[r] - first[r] == kCacheBlock) continue;
    LeaveOutUnseen(row_scores[r], block_values, values, first[r], end[r], added[r]);
  }
}

// SumKept of a block of values of `type`.
void SumBlock(const SoftmaxAttentionArgs& args, CacheType type, const QueryRows& rows, int64_t base,
              const float* block, const float* next, float* scores, BlockSum* sums,
              float* const* added) {
  const auto sum = [&](auto kept) {
    using Kept = decltype(kept);
    SumKept(args, rows, base, reinterpret_cast<const Kept*>(block),
            reinterpret_cast<const Kept*>(next), scores, sums, added);
  };
  switch (type) {
    case CacheType::kF32:
      return sum(float());
    case CacheType::kF16:
      return sum(hwy::float16_t());
    case CacheType::kBf16:
      return sum(hwy::bfloat16_t());
  }
}

// SumBlock, joined to the rows' sums over the blocks before.
void AttendBlock(const SoftmaxAttentionArgs& args, CacheType type, const QueryRows& rows,
                 size_t sums, int64_t base, const float* block, const float* next, float* scratch) {
  const size_t values = size_t(args.value_dim);
  float* added[kRows];
  for (int r = 0; r < rows.count; ++r)
    added[r] = scratch + kRows * kCacheBlock + size_t(r) * values;
  BlockSum weights[kRows];
  SumBlock(args, type, rows, base, block, next, scratch, weights, added);
  for (int r = 0; r < rows.count; ++r) {
    Join(weights[r], added[r], values, rows.maximum[r], rows.maximum[r] + sums, rows.y[r]);
  }
}

float* BlockOf(const SoftmaxAttentionArgs& args, int64_t block) {
  return args.cache + args.block_stride * size_t(args.ring > 0 ? block % args.ring : block);
}

// Keys and values of tokens `begin` .. `end` - 1, which lie in one block, as `Kept`s.
template <class Kept, class Round>
void KeepAs(const SoftmaxAttentionArgs& args, int begin, int end, const Round& round) {
  const size_t keys = size_t(args.key_dim), values = size_t(args.value_dim);
  auto* const block = reinterpret_cast<Kept*>(BlockOf(args, (args.position + begin) / kCacheBlock));
  for (int t = begin; t < end; ++t) {
    const size_t row = size_t((args.position + t) % kCacheBlock);
    const float* const k = args.k.data + size_t(t) * args.k.stride;
    const float* const v = args.v.data + size_t(t) * args.v.stride;
    for (size_t i = 0; i < keys; ++i) block[i * kCacheBlock + row] = round(k[i]);
    Kept* const to = block + keys * kCacheBlock + row * values;
    for (size_t i = 0; i < values; ++i) to[i] = round(v[i]);
  }
}

void Keep(const SoftmaxAttentionArgs& args, int begin, int end) {
  switch (args.type) {
    case CacheType::kF32:
      return KeepAs<float>(args, begin, end, [](float x) { return x; });
    case CacheType::kF16:
      return KeepAs<uint16_t>(args, begin, end, F32ToF16);
    case CacheType::kBf16:
      return KeepAs<uint16_t>(args, begin, end, F32ToBf16);
  }
}

template <class Half>
void WidenAs(const float* block, size_t count, float* to) {
  const hn::CappedTag<float, kCacheBlock> d;  // count is a multiple of its lanes
  const hn::Rebind<Half, decltype(d)> halves;
  const auto* const from = reinterpret_cast<const Half*>(block);
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::StoreU(hn::PromoteTo(d, hn::LoadU(halves, from + i)), d, to + i);
  }
}

// Many rows read a block of 16 bits once and its values in float32, in `scratch`; few rows widen
// what they load.
const float* Widened(const SoftmaxAttentionArgs& args, const float* block, float* scratch) {
  const size_t count = size_t{kCacheBlock} * (size_t(args.key_dim) + size_t(args.value_dim));
  if (args.type == CacheType::kF32) return block;
  if (args.type == CacheType::kF16) {
    WidenAs<hwy::float16_t>(block, count, scratch);
  } else {
    WidenAs<hwy::bfloat16_t>(block, count, scratch);
  }
  return scratch;
}

void Divide(float* y, size_t n, float sum) {
  const FloatTag d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const size_t count = std::min(hn::Lanes(d), n - i);
    StoreSome(hn::Div(LoadSome(y + i, count), hn::Set(d, sum)), y + i, count);
  }
}

// Tokens `begin` .. `end` - 1, which lie in one block and are kept.
void Attend(const SoftmaxAttentionArgs& args, int begin, int end) {
  const size_t values = size_t(args.value_dim);
  const int all = (end - begin) * args.queries;
  const CacheType type = all <= kRows ? args.type : CacheType::kF32;
  const size_t sums = size_t{kCacheBlock} * size_t(args.queries);
  float* const maxima = args.scratch;
  float* const widened = maxima + 2 * sums + kRows * (kCacheBlock + values);
  const auto first_seen = [&](int64_t position) {
    return args.window == 0 ? 0 : std::max<int64_t>(0, position - args.window + 1);
  };
  const auto y_of = [&](int row) {
    return args.y + size_t(begin + row / args.queries) * args.y_stride +
           size_t(row % args.queries) * values;
  };
  std::fill_n(maxima, all, -std::numeric_limits<float>::infinity());
  std::fill_n(maxima + sums, all, 0.0f);
  for (int row = 0; row < all; ++row) std::fill_n(y_of(row), values, 0.0f);
  const int64_t last = (args.position + begin) / kCacheBlock;
  for (int64_t b = first_seen(args.position + begin) / kCacheBlock; b <= last; ++b) {
    const int64_t base = b * kCacheBlock;
    const float* const kept = BlockOf(args, b);
    const float* const block = type == args.type ? kept : Widened(args, kept, widened);
    const float* next = type == args.type && b < last ? BlockOf(args, b + 1) : nullptr;
    for (int row = 0; row < all; row += kRows) {
      QueryRows rows;
      for (; rows.count < std::min(kRows, all - row); ++rows.count) {
        const int at = row + rows.count, t = begin + at / args.queries;
        rows.q[rows.count] = args.q.data + size_t(t) * args.q.stride +
                             size_t(at % args.queries) * size_t(args.key_dim);
        rows.y[rows.count] = y_of(at);
        rows.maximum[rows.count] = maxima + at;
        rows.position[rows.count] = args.position + t;
      }
      if (first_seen(rows.position[0]) >= base + kCacheBlock) continue;
      AttendBlock(args, type, rows, sums, base, block, next, maxima + 2 * sums);
      next = nullptr;
    }
  }
  for (int row = 0; row < all; ++row) Divide(y_of(row), values, maxima[sums + size_t(row)]);
}

void KeepOne(const SoftmaxAttentionArgs& args) { Keep(args, 0, 1); }

void PartOfBlock(const SoftmaxAttentionArgs& args, int64_t block, float* part, int64_t next) {
  const size_t values = size_t(args.value_dim), queries = size_t(args.queries);
  const CacheType type = args.queries <= kRows ? args.type : CacheType::kF32;
  float* const scores = args.scratch;
  const float* data = BlockOf(args, block);
  if (type != args.type) data = Widened(args, data, scores + kRows * kCacheBlock);
  const float* ahead = type == args.type && next >= 0 ? BlockOf(args, next) : nullptr;
  for (int query = 0; query < args.queries; query += kRows) {
    QueryRows rows;
    float* added[kRows];
    for (; rows.count < std::min(kRows, args.queries - query); ++rows.count) {
      const auto at = size_t(query + rows.count);
      rows.q[rows.count] = args.q.data + at * size_t(args.key_dim);
      rows.position[rows.count] = args.position;
      added[rows.count] = part + 2 * queries + at * values;
    }
    BlockSum sums[kRows];
    SumBlock(args, type, rows, block * kCacheBlock, data, ahead, scores, sums, added);
    ahead = nullptr;
    for (int r = 0; r < rows.count; ++r) {
      part[query + r] = sums[r].maximum;
      part[queries + size_t(query + r)] = sums[r].sum;
    }
  }
}

void JoinParts(const SoftmaxAttentionArgs& args, int query, int64_t first, int64_t end,
               const float* parts, float* so_far) {
  const size_t values = size_t(args.value_dim), queries = size_t(args.queries), at = size_t(query);
  float* const y = args.y + at * values;
  if (first == 0) {
    so_far[0] = -std::numeric_limits<float>::infinity();
    so_far[1] = 0;
    std::fill_n(y, values, 0.0f);
  }
  for (int64_t block = first; block < end; ++block) {
    const float* const part =
        parts + size_t(block - first) * SoftmaxPartFloats(args.queries, args.value_dim);
    Join({part[at], part[queries + at]}, part + 2 * queries + at * values, values, so_far,
         so_far + 1, y);
  }
  if (end == args.position / kCacheBlock + 1) Divide(y, values, so_far[1]);
}

void SoftmaxAttention(const SoftmaxAttentionArgs& args) {
  for (int t = 0; t < args.tokens;) {
    const int64_t left = kCacheBlock - (args.position + t) % kCacheBlock;
    const int end = int(std::min<int64_t>(args.tokens, t + left));
    Keep(args, t, end);
    Attend(args, t, end);
    t = end;
  }
}

}  // namespace rivulet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rivulet::kernels {

HWY_EXPORT(SoftmaxAttention);
HWY_EXPORT(KeepOne);
HWY_EXPORT(PartOfBlock);
HWY_EXPORT(JoinParts);

void SoftmaxAttentionCpu(const SoftmaxAttentionArgs& args) {
  HWY_DYNAMIC_DISPATCH(SoftmaxAttention)(args);
}

void SoftmaxKeepCpu(const SoftmaxAttentionArgs& args) { HWY_DYNAMIC_DISPATCH(KeepOne)(args); }

void SoftmaxPartCpu(const SoftmaxAttentionArgs& args, int64_t block, float* part, int64_t next) {
  HWY_DYNAMIC_DISPATCH(PartOfBlock)(args, block, part, next);
}

void SoftmaxJoinCpu(const SoftmaxAttentionArgs& args, int query, int64_t first, int64_t end,
                    const float* parts, float* so_far) {
  HWY_DYNAMIC_DISPATCH(JoinParts)(args, query, first, end, parts, so_far);
}

}  // namespace rivulet::kernels
#endif
