// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/recurrence_cpu.cc"
#include "hwy/foreach_target.h"
// (must stand before highway.h)
#include <algorithm>

#include "hwy/highway.h"
#include "kernels/cpu/vector_math-inl.h"
#include "kernels/recurrence.h"

HWY_BEFORE_NAMESPACE();
namespace rivulet::kernels::HWY_NAMESPACE {

// One token's vectors. `w_step` is 1 where every key has its own decay, else 0.
struct Token {
  const float *q, *k, *v, *w, *beta, *a, *b;
  size_t w_step;
  float* y;
};

// kVecs vectors of columns from `column` on; the last holds `count` columns (a whole vector where
// count >= lanes).
struct Columns {
  size_t column, count;
};

// Sums over keys have one accumulator for even keys and one for odd keys. This halves the chain of
// dependent multiply-adds, and the order stays fixed. f(i, acc) adds key i to acc.
template <int kVecs, class Fn>
HWY_INLINE void SumOverKeys(size_t keys, FloatVec* sum, const Fn& f) {
  const FloatTag d;
  FloatVec even[kVecs], odd[kVecs];
  for (int j = 0; j < kVecs; ++j) even[j] = odd[j] = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 <= keys; i += 2) {
    f(i, even);
    f(i + 1, odd);
  }
  if (i < keys) f(i, even);
  for (int j = 0; j < kVecs; ++j) sum[j] = hn::Add(even[j], odd[j]);
}

template <UpdateRule kRule, int kVecs>
HWY_INLINE void Advance(const RecurrenceArgs& args, const Token& token, const Columns& at) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d), values = size_t(args.value_dim), keys = size_t(args.key_dim);
  FloatVec added[kVecs], read[kVecs], y[kVecs];
  for (int j = 0; j < kVecs; ++j) {
    added[j] = LoadSome(token.v + at.column + size_t(j) * lanes, at.count);
  }
  if constexpr (kRule != UpdateRule::kDecay) {
    SumOverKeys<kVecs>(keys, read, [&](size_t i, FloatVec* acc) HWY_ATTR {
      const FloatVec x = kRule == UpdateRule::kDelta
                             ? hn::Set(d, token.w[i * token.w_step] * token.k[i])
                             : hn::Set(d, token.a[i]);
      const float* s = args.s + i * values + at.column;
      for (int j = 0; j < kVecs; ++j) {
        acc[j] = hn::MulAdd(x, LoadSome(s + size_t(j) * lanes, at.count), acc[j]);
      }
    });
  }
  if constexpr (kRule == UpdateRule::kDelta) {
    const FloatVec beta = hn::Set(d, *token.beta);
    for (int j = 0; j < kVecs; ++j) added[j] = hn::Mul(beta, hn::Sub(added[j], read[j]));
  }
  SumOverKeys<kVecs>(keys, y, [&](size_t i, FloatVec* acc) HWY_ATTR {
    const FloatVec w = hn::Set(d, token.w[i * token.w_step]), k = hn::Set(d, token.k[i]),
                   q = hn::Set(d, token.q[i]);
    float* s = args.s + i * values + at.column;
    for (int j = 0; j < kVecs; ++j) {
      FloatVec state = hn::Mul(w, LoadSome(s + size_t(j) * lanes, at.count));
      if constexpr (kRule == UpdateRule::kRankOne) {
        state = hn::MulAdd(hn::Set(d, token.b[i]), read[j], state);
      }
      state = hn::MulAdd(k, added[j], state);
      StoreSome(state, s + size_t(j) * lanes, at.count);
      acc[j] = hn::MulAdd(q, state, acc[j]);
    }
  });
  for (int j = 0; j < kVecs; ++j) {
    StoreSome(y[j], token.y + at.column + size_t(j) * lanes, at.count);
  }
}

// All tokens of one block of columns, which is therefore read from memory once and written once.
template <UpdateRule kRule, int kVecs>
void AllTokens(const RecurrenceArgs& args, const Columns& at) {
  static constexpr float kOne = 1;
  const auto row = [](const TokenVectors& x, size_t t) {
    return x.data == nullptr ? nullptr : x.data + t * x.stride;
  };
  for (size_t t = 0; t < size_t(args.tokens); ++t) {
    const Token token{row(args.q, t),
                      row(args.k, t),
                      row(args.v, t),
                      args.w_dim == 0 ? &kOne : row(args.w, t),
                      row(args.beta, t),
                      row(args.a, t),
                      row(args.b, t),
                      args.w_dim > 1 ? size_t{1} : size_t{0},
                      args.y + t * args.y_stride};
    Advance<kRule, kVecs>(args, token, at);
  }
}

template <UpdateRule kRule>
void AllColumns(const RecurrenceArgs& args) {
  const size_t lanes = hn::Lanes(FloatTag()), values = size_t(args.value_dim);
  size_t column = 0;
  for (; column + 4 * lanes <= values; column += 4 * lanes) {
    AllTokens<kRule, 4>(args, {column, lanes});
  }
  for (; column + 2 * lanes <= values; column += 2 * lanes) {
    AllTokens<kRule, 2>(args, {column, lanes});
  }
  for (; column < values; column += lanes) {
    AllTokens<kRule, 1>(args, {column, std::min(lanes, values - column)});
  }
}

void Recurrence(const RecurrenceArgs& args) {
  switch (args.rule) {
    case UpdateRule::kDecay:
      return AllColumns<UpdateRule::kDecay>(args);
    case UpdateRule::kDelta:
      return AllColumns<UpdateRule::kDelta>(args);
    case UpdateRule::kRankOne:
      return AllColumns<UpdateRule::kRankOne>(args);
  }
}

}  // namespace rivulet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rivulet::kernels {

HWY_EXPORT(Recurrence);

void RecurrenceCpu(const RecurrenceArgs& args) { HWY_DYNAMIC_DISPATCH(Recurrence)(args); }

}  // namespace rivulet::kernels
#endif
