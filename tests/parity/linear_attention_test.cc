// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear_attention.h"

#include <algorithm>

#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {
namespace {

// One head's inputs, side by side as the qkv product leaves them: [query | key | value | gate].
struct Case {
  Case(int keys, int values, int count, bool with_gate)
      : key_dim(keys),
        value_dim(values),
        tokens(count),
        gated(with_gate),
        ld(2 * keys + values + 1),
        rows(RandomFloats(size_t(count * ld), 7, -2, 2)) {}

  // Tokens first .. first + count - 1 into `out` (row `first`), advancing s and z.
  LinearAttentionArgs Args(int first, int count, float* out, float* s, float* z,
                           float* scratch) const {
    LinearAttentionArgs args;
    args.map.key_dim = key_dim;
    const float* row = rows.data() + first * ld;
    args.query = row;
    args.key = row + key_dim;
    args.value = row + 2 * key_dim;
    args.gate = gated ? row + 2 * key_dim + value_dim : nullptr;
    args.out = out + first * value_dim;
    args.s = s;
    args.z = z;
    args.scratch = scratch;
    args.ld = size_t(ld);
    args.ld_out = size_t(value_dim);
    args.tokens = count;
    args.features = key_dim;
    args.value_dim = value_dim;
    args.clamp = gated;
    args.normalizer = gated ? 0.01f : 1e-6f;
    return args;
  }

  int key_dim, value_dim, tokens;
  bool gated;
  int ld;
  std::vector<float> rows;
};

// The causal masked quadratic form, with no state at all:
//   y_t = sum_{i <= t} w(t, i) (q_t . k_i) v_i / n(sum_{i <= t} w(t, i) (q_t . k_i))
// where w(t, i) = a_i prod_{j = i+1 .. t} g_j (1 without a gate).
std::vector<double> Quadratic(const Case& c) {
  const auto phi = [](double x) { return x > 0 ? x + 1 : std::exp(x); };
  const auto at = [&](int t, int i) { return double{c.rows[size_t(t * c.ld + i)]}; };
  std::vector<double> out(size_t(c.tokens * c.value_dim));
  for (int t = 0; t < c.tokens; ++t) {
    double divisor = 0;
    std::vector<double> sum(size_t(c.value_dim));
    for (int i = 0; i <= t; ++i) {
      double weight = 1;
      if (c.gated) {
        const auto g = [&](int j) {
          return 1 / (1 + std::exp(-at(j, 2 * c.key_dim + c.value_dim)));
        };
        weight = 1 - g(i);
        for (int j = i + 1; j <= t; ++j) weight *= g(j);
      }
      double dot = 0;
      for (int f = 0; f < c.key_dim; ++f) dot += phi(at(t, f)) * phi(at(i, c.key_dim + f));
      divisor += weight * dot;
      for (int v = 0; v < c.value_dim; ++v)
        sum[size_t(v)] += weight * dot * at(i, 2 * c.key_dim + v);
    }
    divisor = c.gated ? std::max(divisor, 0.01) : divisor + 1e-6;
    for (int v = 0; v < c.value_dim; ++v)
      out[size_t(t * c.value_dim + v)] = sum[size_t(v)] / divisor;
  }
  return out;
}

struct Result {
  std::vector<float> out, s, z;
};

Result RunCpu(const Case& c, int chunk) {
  const size_t s_size = size_t(c.key_dim * c.value_dim);
  GuardedFloats out(size_t(c.tokens * c.value_dim)), s(s_size), z(size_t(c.key_dim)),
      scratch(LinearAttentionScratch(c.key_dim));
  std::fill_n(s.data(), s_size, 0.0f);
  std::fill_n(z.data(), c.key_dim, 0.0f);
  for (int t = 0; t < c.tokens; t += chunk) {
    LinearAttentionCpu(
        c.Args(t, std::min(chunk, c.tokens - t), out.data(), s.data(), z.data(), scratch.data()));
  }
  EXPECT_TRUE(out.Intact() && s.Intact() && z.Intact() && scratch.Intact());
  return {out.Copy(), s.Copy(), z.Copy()};
}

const std::vector<Case>& Cases() {
  static const auto* cases =
      new std::vector<Case>{{32, 32, 40, false}, {64, 64, 40, true}, {7, 5, 23, false},
                            {17, 33, 23, true},  {1, 1, 9, false},   {48, 80, 17, true}};
  return *cases;
}

TEST(LinearAttentionTest, RecurrentEqualsTheQuadraticMaskedFormAndTheReference) {
  for (const Case& c : Cases()) {
    const std::vector<double> expected = Quadratic(c);
    ForEachCpuTarget([&](const std::string& target) {
      const Result result = RunCpu(c, 1);
      std::vector<float> out(expected.size()), s(result.s.size()), z(result.z.size());
      LinearAttentionRef(c.Args(0, c.tokens, out.data(), s.data(), z.data(), nullptr));
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(result.out[i], expected[i], 2e-5)
            << target << " key_dim " << c.key_dim << " at " << i;
        ASSERT_NEAR(out[i], expected[i], 2e-6);
      }
      for (size_t i = 0; i < s.size(); ++i) ASSERT_NEAR(result.s[i], s[i], 1e-4);
      for (size_t i = 0; i < z.size(); ++i) ASSERT_NEAR(result.z[i], z[i], 1e-4);
    });
  }
}

TEST(LinearAttentionTest, BitsAreTheSameAtEveryChunkSizeAndFusingTarget) {
  for (const Case& c : Cases()) {
    const Result reference = RunCpu(c, 1);
    ForEachCpuTarget([&](const std::string& target) {
      if (!CpuTargetFuses()) return;
      for (const int chunk : {1, 2, 3, 16, 1000}) {
        const Result result = RunCpu(c, chunk);
        ASSERT_TRUE(SameBits(result.out, reference.out)) << target << " chunk " << chunk;
        ASSERT_TRUE(SameBits(result.s, reference.s)) << target << " chunk " << chunk;
        ASSERT_TRUE(SameBits(result.z, reference.z)) << target << " chunk " << chunk;
      }
    });
  }
}

TEST(LinearAttentionTest, AGateNearOneKeepsTheDigitsOfWhatItLetsIn) {
  Case c(16, 16, 200, true);
  for (int t = 0; t < c.tokens; ++t) c.rows[size_t(t * c.ld + c.ld - 1)] = 14 + float(t % 7);
  // Far below the clamp the divisor is a constant, and every digit of 1 - g shows in the output.
  const Result result = RunCpu(c, 1);
  std::vector<float> out(result.out.size()), s(result.s.size()), z(result.z.size());
  LinearAttentionRef(c.Args(0, c.tokens, out.data(), s.data(), z.data(), nullptr));
  for (size_t i = 0; i < z.size(); ++i) EXPECT_NEAR(result.z[i] / z[i], 1, 1e-5);
}

TEST(LinearAttentionTest, TenThousandTokensDriftNoFurtherThanFloat32Sums) {
  const Case c(16, 16, 10000, false);
  const Result result = RunCpu(c, 64);
  std::vector<float> out(result.out.size()), s(result.s.size()), z(result.z.size());
  LinearAttentionRef(c.Args(0, c.tokens, out.data(), s.data(), z.data(), nullptr));
  for (size_t i = 0; i < z.size(); ++i) EXPECT_NEAR(result.z[i] / z[i], 1, 1e-5);
  for (size_t i = out.size() - 16; i < out.size(); ++i) EXPECT_NEAR(result.out[i], out[i], 1e-4);
}

}  // namespace
}  // namespace rivulet::kernels
