// SPDX-License-Identifier: Apache-2.0
#include "kernels/token_shift.h"

#include <algorithm>

#include "tests/support/cuts.h"
#include "tests/support/token_shift_case.h"

namespace rivulet::kernels::token_shift_test {
namespace {

using Case = TokenShiftCase;

TEST(TokenShiftTest, MatchesTheReferenceAndKeepsTheLastInput) {
  for (const Case& c : TokenShiftCases()) {
    const RowsAndStates expected = Expected(c, TokenShiftRef);
    ForEachCpuTarget([&](const std::string& target) {
      const RowsAndStates result = RunCpu(c, 1, TokenShiftCpu);
      ASSERT_TRUE(Near(result.y, expected.y, 1e-6)) << target << " n " << c.n;
      ASSERT_TRUE(SameBits(result.states, expected.states)) << target;
    });
  }
}

TEST(TokenShiftTest, BitsAreTheSameAtEveryChunkSizeAndFusingTarget) {
  for (const Case& c : TokenShiftCases()) ExpectTheSameInEveryChunk(c, TokenShiftCpu);
}

TEST(TokenShiftTest, AMixOfZeroIsThisTokenAndNoTokenLeavesTheStateAlone) {
  Case c(20, 1, 3);
  std::fill(c.mix.begin(), c.mix.end(), 0.0f);
  const RowsAndStates result = RunCpu(c, 3, TokenShiftCpu);
  for (size_t t = 0; t < 3; ++t) {
    for (size_t i = 0; i < 20; ++i) EXPECT_EQ(result.y[t * 22 + i], c.x[t * 23 + i]);
  }
  std::vector<float> state = c.states, y(c.y_size());
  TokenShiftCpu(c.Args(0, 0, 0, y.data(), state.data()));
  EXPECT_TRUE(SameBits(state, c.states));
}

}  // namespace
}  // namespace rivulet::kernels::token_shift_test
