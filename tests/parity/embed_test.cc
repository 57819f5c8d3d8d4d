// SPDX-License-Identifier: Apache-2.0
#include "kernels/embed.h"

#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels::embed_test {
namespace {

TEST(EmbedTest, AddsConcatenatesOrLeavesOutThePositionAndClearsThePadding) {
  const std::vector<float> table = {1, 2, 3, 4, 5, 6}, position = {10, 20};
  EmbedArgs args;
  args.tokens = table.data();
  args.columns = 2;
  args.ld = 6;
  std::vector<float> y(6, -1);
  EmbedCpu(args, 1, y.data());
  EXPECT_EQ(y, (std::vector<float>{3, 4, 0, 0, 0, 0}));
  args.positions = position.data();
  args.position_columns = 2;
  EmbedCpu(args, 2, y.data());
  EXPECT_EQ(y, (std::vector<float>{15, 26, 0, 0, 0, 0}));
  args.concat = true;
  EmbedCpu(args, 0, y.data());
  EXPECT_EQ(y, (std::vector<float>{1, 2, 10, 20, 0, 0}));
}

TEST(EmbedTest, SinusoidalPositionsAlternateSineAndCosine) {
  for (const int columns : {1, 2, 5, 8}) {
    for (const int64_t p : {int64_t{0}, int64_t{1}, int64_t{3071}, int64_t{1} << 30}) {
      std::vector<float> out(static_cast<size_t>(columns));
      SinusoidalPosition(p, columns, out.data());
      for (int i = 0; 2 * i < columns; ++i) {
        const double angle = double(p) * std::pow(10000.0, -2.0 * i / columns);
        EXPECT_NEAR(out[size_t(2 * i)], std::sin(angle), 1e-7);
        if (2 * i + 1 < columns) {
          EXPECT_NEAR(out[size_t(2 * i + 1)], std::cos(angle), 1e-7);
        }
      }
    }
  }
}

}  // namespace
}  // namespace rivulet::kernels::embed_test
