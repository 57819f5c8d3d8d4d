// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear_attention.h"

#include <algorithm>

#include "tests/support/attention_case.h"
#include "tests/support/cuts.h"

namespace rivulet::kernels::linear_attention_test {
namespace {

// The first head of a layer, from an empty state on.
struct Case : AttentionCase {
  Case(const AttentionShape& shape, int count)
      : AttentionCase(shape, count), tokens(count), states(layout.floats_per_slot()) {}
  LinearAttentionArgs Args(int, int first, int count, float* y, float* state) const {
    return HeadArgs(first, count, y, state);
  }
  int tokens, slots = 1;
  std::vector<float> states;
};

void Cpu(LinearAttentionArgs args) {
  GuardedFloats scratch(LinearAttentionScratch(args.features));
  args.scratch = scratch.data();
  LinearAttentionCpu(args);
  EXPECT_TRUE(scratch.Intact());
}

// The causal masked quadratic form, with no state at all:
//   y_t = sum_{i <= t} w(t, i) (q_t . k_i) v_i / n(sum_{i <= t} w(t, i) (q_t . k_i))
// where w(t, i) = a_i prod_{j = i+1 .. t} g_j (1 without a gate).
std::vector<double> Quadratic(const Case& c) {
  const auto phi = [](double x) { return x > 0 ? x + 1 : std::exp(x); };
  const auto at = [&](int t, int i) { return double{c.qkv[size_t(t * c.ld + i)]}; };
  const int keys = c.s.key_dim, values = c.s.value_dim;
  std::vector<double> out(c.y_size(), 7.0);  // 7: beside the head
  for (int t = 0; t < c.tokens; ++t) {
    double divisor = 0;
    std::vector<double> sum(static_cast<size_t>(values));
    for (int i = 0; i <= t; ++i) {
      double weight = 1;
      if (c.s.gated) {
        const auto g = [&](int j) { return 1 / (1 + std::exp(-at(j, c.GateAt(0)))); };
        weight = 1 - g(i);
        for (int j = i + 1; j <= t; ++j) weight *= g(j);
      }
      double dot = 0;
      for (int f = 0; f < keys; ++f) dot += phi(at(t, f)) * phi(at(i, c.s.heads * keys + f));
      divisor += weight * dot;
      for (int v = 0; v < values; ++v)
        sum[size_t(v)] += weight * dot * at(i, 2 * c.s.heads * keys + v);
    }
    divisor = c.s.gated ? std::max(divisor, 0.01) : divisor + 1e-6;
    for (int v = 0; v < values; ++v) out[size_t(t * c.LdOut() + v)] = sum[size_t(v)] / divisor;
  }
  return out;
}

TEST(LinearAttentionTest, RecurrentEqualsTheQuadraticMaskedFormAndTheReference) {
  for (const AttentionShape& shape : AttentionShapes()) {
    if (shape.kind != FeatureMapKind::kElu) continue;
    const Case c(shape, 40);
    const std::vector<double> expected = Quadratic(c);
    const RowsAndStates reference = Expected(c, LinearAttentionRef);
    ASSERT_TRUE(Near(reference.y, expected, 2e-6)) << "seed " << shape.seed;
    ForEachCpuTarget([&](const std::string& target) {
      const RowsAndStates result = RunCpu(c, 1, Cpu);
      ASSERT_TRUE(Near(result.y, expected, 2e-5)) << target << " seed " << shape.seed;
      ASSERT_TRUE(Near(result.states, reference.states, 1e-4)) << target << " seed " << shape.seed;
    });
  }
}

TEST(LinearAttentionTest, BitsAreTheSameAtEveryChunkSizeAndFusingTarget) {
  for (const AttentionShape& shape : AttentionShapes()) {
    SCOPED_TRACE(shape.seed);
    ExpectTheSameInEveryChunk(Case(shape, 40), Cpu);
  }
}

// z within 1e-5 of the reference's; the result.
RowsAndStates ExpectNearZ(const Case& c, int chunk, const RowsAndStates& expected) {
  const RowsAndStates result = RunCpu(c, chunk, Cpu);
  for (size_t i = 0; i < size_t(c.layout.features); ++i) {
    const size_t at = c.layout.z_offset(1, 0) + i;
    EXPECT_NEAR(result.states[at] / expected.states[at], 1, 1e-5);
  }
  return result;
}

TEST(LinearAttentionTest, AGateNearOneKeepsTheDigitsOfWhatItLetsIn) {
  Case c({FeatureMapKind::kElu, 1, 16, 16, 0, true, 5}, 200);
  for (int t = 0; t < c.tokens; ++t) c.qkv[size_t(t * c.ld + c.GateAt(0))] = 14 + float(t % 7);
  // Far below the clamp the divisor is a constant, and every digit of 1 - g shows in the output.
  ExpectNearZ(c, 1, Expected(c, LinearAttentionRef));
}

TEST(LinearAttentionTest, TenThousandTokensDriftNoFurtherThanFloat32Sums) {
  const Case c({FeatureMapKind::kElu, 1, 16, 16, 0, false, 5}, 10000);
  const RowsAndStates expected = Expected(c, LinearAttentionRef);
  const RowsAndStates result = ExpectNearZ(c, 64, expected);
  const auto last = [&](const RowsAndStates& all) {
    return std::vector<float>(all.y.end() - c.LdOut(), all.y.end());
  };
  EXPECT_TRUE(Near(last(result), last(expected), 1e-4));
}

}  // namespace
}  // namespace rivulet::kernels::linear_attention_test
