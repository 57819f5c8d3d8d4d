// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_attention_cpu.cc"
#include "hwy/foreach_target.h"
// (must stand before highway.h)
#include <algorithm>
#include <cmath>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/vector_math-inl.h"
#include "kernels/linear_attention.h"

HWY_BEFORE_NAMESPACE();
namespace rivulet::kernels::HWY_NAMESPACE {

inline constexpr size_t kCacheLineFloats = 16;

// The gate of a token: g multiplies the old state, a the new key.
struct GateFactors {
  float g = 1, a = 1;
};

// g = sigmoid(x), a = 1 - g = sigmoid(-x): both from the exponential, because 1 - g has no digits
// left where g is near 1.
HWY_INLINE GateFactors Sigmoid(float x) {
  const float small = std::exp(-std::fabs(x));  // at most 1
  const float near = 1.0f / (1.0f + small), far = small / (1.0f + small);
  return x > 0 ? GateFactors{near, far} : GateFactors{far, near};
}

// z <- g z + k, then q . z. `k` already carries the factor a.
template <bool kGated>
HWY_INLINE float UpdateZ(const float* q, const float* k, float g, float* z, size_t features) {
  const FloatTag d;
  const FloatVec vg = hn::Set(d, g);
  return FoldLanes(
      features,
      [&](size_t f, FloatVec acc) {
        FloatVec next = hn::LoadU(d, z + f);
        next =
            kGated ? hn::MulAdd(vg, next, hn::LoadU(d, k + f)) : hn::Add(next, hn::LoadU(d, k + f));
        hn::StoreU(next, d, z + f);
        return hn::MulAdd(hn::LoadU(d, q + f), next, acc);
      },
      [&](size_t f, float acc) {
        z[f] = kGated ? MulAdd1(g, z[f], k[f]) : z[f] + k[f];
        return MulAdd1(q[f], z[f], acc);
      });
}

// S <- g S + k v^T for kVecs vectors of columns from `column` on, and their y = q^T S. Even and odd
// features have separate accumulators. This halves the chain of dependent multiply-adds, and the
// order stays fixed.
template <bool kGated, int kVecs>
HWY_INLINE void UpdateColumns(const LinearAttentionArgs& args, const float* q, const float* k,
                              float g, float inverse, const float* value, float* out,
                              size_t column) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d), value_dim = size_t(args.value_dim),
               features = size_t(args.features);
  const FloatVec vg = hn::Set(d, g);
  FloatVec v[kVecs], even[kVecs], odd[kVecs];
  for (int j = 0; j < kVecs; ++j) {
    v[j] = hn::LoadU(d, value + column + size_t(j) * lanes);
    even[j] = odd[j] = hn::Zero(d);
  }
  const auto feature = [&](size_t f, FloatVec* acc) HWY_ATTR {
    const FloatVec vk = hn::Set(d, k[f]), vq = hn::Set(d, q[f]);
    float* s = args.s + f * value_dim + column;
    for (int j = 0; j < kVecs; ++j) {
      FloatVec state = hn::LoadU(d, s + size_t(j) * lanes);
      if constexpr (kGated) state = hn::Mul(vg, state);
      state = hn::MulAdd(vk, v[j], state);
      hn::StoreU(state, d, s + size_t(j) * lanes);
      acc[j] = hn::MulAdd(vq, state, acc[j]);
    }
  };
  const float* ahead = args.next_s == nullptr ? args.s : args.next_s;
  const auto fetch = [&](size_t i) HWY_ATTR {
    for (size_t j = 0; j < size_t(kVecs) * lanes; j += kCacheLineFloats) {
      hwy::Prefetch(ahead + i * value_dim + column + j);
    }
  };
  size_t f = 0;
  for (; f + 2 <= features; f += 2) {
    fetch(f);
    feature(f, even);
    fetch(f + 1);
    feature(f + 1, odd);
  }
  if (f < features) feature(f, even);
  for (int j = 0; j < kVecs; ++j) {
    hn::StoreU(hn::Mul(hn::Add(even[j], odd[j]), hn::Set(d, inverse)), d,
               out + column + size_t(j) * lanes);
  }
}

// The columns that fill no vector, one by one, in the same order.
template <bool kGated>
HWY_INLINE void UpdateColumn(const LinearAttentionArgs& args, const float* q, const float* k,
                             float g, float inverse, const float* value, float* out,
                             size_t column) {
  float acc[2] = {0, 0};
  for (size_t f = 0; f < size_t(args.features); ++f) {
    float& s = args.s[f * size_t(args.value_dim) + column];
    s = MulAdd1(k[f], value[column], kGated ? g * s : s);
    acc[f % 2] = MulAdd1(q[f], s, acc[f % 2]);
  }
  out[column] = (acc[0] + acc[1]) * inverse;
}

template <bool kGated>
void Token(const LinearAttentionArgs& args, size_t t) {
  const size_t lanes = hn::Lanes(FloatTag()), value_dim = size_t(args.value_dim);
  const size_t features = size_t(args.features);
  float* q = args.scratch;
  float* k = args.scratch + LinearAttentionScratch(args.features) / 2;
  FeatureMapCpu(args.map, args.query + t * args.ld, q);
  FeatureMapCpu(args.map, args.key + t * args.ld, k);
  GateFactors gate;
  if constexpr (kGated) {
    gate = Sigmoid(args.gate[t * args.ld]);
    for (size_t f = 0; f < features; ++f) k[f] *= gate.a;
  }
  const float dot = UpdateZ<kGated>(q, k, gate.g, args.z, features);
  const float inverse =
      1.0f / (args.clamp ? std::max(dot, args.normalizer) : dot + args.normalizer);
  const float* value = args.value + t * args.ld;
  float* out = args.out + t * args.ld_out;
  size_t column = 0;
  for (; column + 4 * lanes <= value_dim; column += 4 * lanes) {
    UpdateColumns<kGated, 4>(args, q, k, gate.g, inverse, value, out, column);
  }
  for (; column + 2 * lanes <= value_dim; column += 2 * lanes) {
    UpdateColumns<kGated, 2>(args, q, k, gate.g, inverse, value, out, column);
  }
  for (; column + lanes <= value_dim; column += lanes) {
    UpdateColumns<kGated, 1>(args, q, k, gate.g, inverse, value, out, column);
  }
  for (; column < value_dim; ++column) {
    UpdateColumn<kGated>(args, q, k, gate.g, inverse, value, out, column);
  }
}

void LinearAttention(const LinearAttentionArgs& args) {
  for (size_t t = 0; t < size_t(args.tokens); ++t) {
    if (args.gate) {
      Token<true>(args, t);
    } else {
      Token<false>(args, t);
    }
  }
}

}  // namespace rivulet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rivulet::kernels {

HWY_EXPORT(LinearAttention);

void LinearAttentionCpu(const LinearAttentionArgs& args) {
  HWY_DYNAMIC_DISPATCH(LinearAttention)(args);
}

}  // namespace rivulet::kernels
#endif
