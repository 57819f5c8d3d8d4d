// SPDX-License-Identifier: Apache-2.0
#include "kernels/causal_conv.h"

#include <algorithm>

#include "tests/support/causal_conv_case.h"
#include "tests/support/cuts.h"

namespace rivulet::kernels::causal_conv_test {
namespace {

using Case = CausalConvCase;

TEST(CausalConvTest, MatchesTheReferenceAndKeepsTheLastInputs) {
  for (const Case& c : CausalConvCases()) {
    const RowsAndStates expected = Expected(c, CausalConvRef);
    ForEachCpuTarget([&](const std::string& target) {
      const RowsAndStates result = RunCpu(c, 1, CausalConvCpu);
      ASSERT_TRUE(Near(result.y, expected.y, 3e-6)) << target << " width " << c.width;
      ASSERT_TRUE(SameBits(result.states, expected.states)) << target << " width " << c.width;
    });
  }
}

TEST(CausalConvTest, BitsAreTheSameAtEveryChunkSizeAndFusingTarget) {
  for (const Case& c : CausalConvCases()) ExpectTheSameInEveryChunk(c, CausalConvCpu);
}

TEST(CausalConvTest, AChannelAloneHasTheBitsItHasBesideOthers) {
  for (const Case& c : CausalConvCases()) {
    const RowsAndStates whole = RunCpu(c, c.tokens, CausalConvCpu);
    for (int channel = 0; channel < c.channels; channel += 5) {
      std::vector<float> weight, state, y(size_t(c.tokens)), expected;
      for (int j = 0; j < c.width; ++j)
        weight.push_back(c.weight[size_t(j * c.channels + channel)]);
      for (int j = 0; j + 1 < c.width; ++j)
        state.push_back(c.states[size_t(j * c.channels + channel)]);
      for (int t = 0; t < c.tokens; ++t)
        expected.push_back(whole.y[size_t(t * c.ld_y() + channel)]);
      CausalConvArgs args = c.Args(0, 0, c.tokens, y.data(), state.data());
      args.x += channel;
      args.weight = weight.data();
      if (args.bias != nullptr) args.bias += channel;
      args.channels = 1;
      args.y_stride = 1;
      CausalConvCpu(args);
      ASSERT_TRUE(SameBits(y, expected)) << "width " << c.width << " channel " << channel;
    }
  }
}

TEST(CausalConvTest, AnImpulseMeetsTheTapsFromTheLastToTheFirst) {
  const std::vector<float> weight = {1, 2, 3, 4}, x = {1, 0, 0, 0, 0, 0};
  std::vector<float> state(3, 0.0f), y(6);
  CausalConvArgs args;
  args.x = x.data();
  args.weight = weight.data();
  args.y = y.data();
  args.state = state.data();
  args.x_stride = args.y_stride = 1;
  args.tokens = 6;
  args.channels = 1;
  args.width = 4;
  CausalConvCpu(args);
  EXPECT_TRUE(SameBits(y, {4, 3, 2, 1, 0, 0}));
  args.tokens = 0;
  state = {5, 6, 7};
  CausalConvCpu(args);
  EXPECT_TRUE(SameBits(state, {5, 6, 7})) << "no token leaves the state alone";
}

}  // namespace
}  // namespace rivulet::kernels::causal_conv_test
