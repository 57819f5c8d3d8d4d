// SPDX-License-Identifier: Apache-2.0
#include "kernels/token_shift.h"

#include <algorithm>

#include "tests/support/kernel_arrays.h"
#include "tests/support/token_shift_case.h"

namespace rivulet::kernels {
namespace {

using Case = TokenShiftCase;

struct Result {
  std::vector<float> y, state;
};

Result RunCpu(const Case& c, int chunk) {
  GuardedFloats y(c.y_size()), state(c.states.size());
  std::copy(c.states.begin(), c.states.end(), state.data());
  for (int t = 0; t < c.tokens; t += chunk) {
    TokenShiftCpu(c.Args(0, t, std::min(chunk, c.tokens - t), y.data(), state.data()));
  }
  EXPECT_TRUE(y.Intact() && state.Intact());
  return {y.Copy(), state.Copy()};
}

TEST(TokenShiftTest, MatchesTheReferenceAndKeepsTheLastInput) {
  for (const Case& c : TokenShiftCases()) {
    std::vector<float> expected(c.y_size()), state = c.states;
    TokenShiftRef(c.Args(0, 0, c.tokens, expected.data(), state.data()));
    ForEachCpuTarget([&](const std::string& target) {
      const Result result = RunCpu(c, 1);
      for (size_t i = 0; i < expected.size(); ++i) {
        if (int(i) % c.mix_stride() >= c.n) {
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
  for (const Case& c : TokenShiftCases()) {
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
  std::vector<float> state = c.states, y(c.y_size());
  TokenShiftCpu(c.Args(0, 0, 0, y.data(), state.data()));
  EXPECT_TRUE(SameBits(state, c.states));
}

}  // namespace
}  // namespace rivulet::kernels
