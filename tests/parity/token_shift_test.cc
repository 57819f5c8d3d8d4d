// SPDX-License-Identifier: Apache-2.0
#include "kernels/token_shift.h"

#include <algorithm>

#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {
namespace {

using rivulet::testing::ForEachCpuTarget;
using rivulet::testing::GuardedFloats;
using rivulet::testing::RandomFloats;
using rivulet::testing::SameBits;

struct Case {
  Case(int width, int count, int length)
      : n(width),
        mixes(count),
        tokens(length),
        x(RandomFloats(size_t(length * (width + 3)), 1, -3, 3)),
        mix(RandomFloats(size_t(count * width), 2, 0, 1)),
        start(RandomFloats(size_t(width), 3, -3, 3)) {}

  TokenShiftArgs Args(int first, int count, float* y, float* state) const {
    TokenShiftArgs args;
    args.x_stride = size_t(n) + 3;
    args.y_stride = size_t(n) + 2;
    args.mix_stride = size_t(tokens) * args.y_stride;
    args.x = x.data() + size_t(first) * args.x_stride;
    args.y = y + size_t(first) * args.y_stride;
    args.mix = mix.data();
    args.state = state;
    args.tokens = count;
    args.mixes = mixes;
    args.n = n;
    return args;
  }
  size_t y_size() const { return size_t(mixes * tokens * (n + 2)); }

  int n, mixes, tokens;
  std::vector<float> x, mix, start;
};

const std::vector<Case>& Cases() {
  static const auto* cases =
      new std::vector<Case>{{1, 1, 5}, {16, 6, 9}, {45, 6, 4}, {64, 1, 1}, {33, 2, 20}};
  return *cases;
}

struct Result {
  std::vector<float> y, state;
};

Result RunCpu(const Case& c, int chunk) {
  GuardedFloats y(c.y_size()), state(c.start.size());
  std::copy(c.start.begin(), c.start.end(), state.data());
  for (int t = 0; t < c.tokens; t += chunk) {
    TokenShiftCpu(c.Args(t, std::min(chunk, c.tokens - t), y.data(), state.data()));
  }
  EXPECT_TRUE(y.Intact() && state.Intact());
  return {y.Copy(), state.Copy()};
}

TEST(TokenShiftTest, MatchesTheReferenceAndKeepsTheLastInput) {
  for (const Case& c : Cases()) {
    std::vector<float> expected(c.y_size()), state = c.start;
    TokenShiftRef(c.Args(0, c.tokens, expected.data(), state.data()));
    ForEachCpuTarget([&](const std::string& target) {
      const Result result = RunCpu(c, 1);
      for (size_t i = 0; i < expected.size(); ++i) {
        if (int(i) % (c.n + 2) >= c.n) {
          ASSERT_TRUE(std::isnan(result.y[i])) << "outside of the row";
        } else {
          ASSERT_NEAR(result.y[i], expected[i], 1e-6) << target << " n " << c.n << " at " << i;
        }
      }
      ASSERT_TRUE(SameBits(result.state, state)) << target;
    });
  }
}

TEST(TokenShiftTest, BitsAreTheSameAtEveryChunkSizeAndFusingTarget) {
  for (const Case& c : Cases()) {
    const Result reference = RunCpu(c, 1);
    ForEachCpuTarget([&](const std::string& target) {
      if (!CpuTargetFuses()) return;
      for (const int chunk : {1, 2, 3, 1000}) {
        const Result result = RunCpu(c, chunk);
        ASSERT_TRUE(SameBits(result.y, reference.y)) << target << " chunk " << chunk;
        ASSERT_TRUE(SameBits(result.state, reference.state)) << target << " chunk " << chunk;
      }
    });
  }
}

TEST(TokenShiftTest, AMixOfZeroIsThisTokenAndNoTokenLeavesTheStateAlone) {
  Case c(20, 1, 3);
  std::fill(c.mix.begin(), c.mix.end(), 0.0f);
  const Result result = RunCpu(c, 3);
  for (size_t t = 0; t < 3; ++t) {
    for (size_t i = 0; i < 20; ++i) EXPECT_EQ(result.y[t * 22 + i], c.x[t * 23 + i]);
  }
  std::vector<float> state = c.start, y(c.y_size());
  TokenShiftCpu(c.Args(0, 0, y.data(), state.data()));
  EXPECT_TRUE(SameBits(state, c.start));
}

}  // namespace
}  // namespace rivulet::kernels
