// SPDX-License-Identifier: Apache-2.0
#include "client/cli/image/half_blocks.h"

#include <gtest/gtest.h>

namespace rivulet {
namespace {

const ImageShape kShape{3, 2, 1, 256};
const std::vector<int32_t> kImage = {0, 10, 20, 30, 40, 50};

TEST(HalfBlocksTest, PutsTwoRowsOfPixelsIntoOneOfCharacters) {
  const auto lines = HalfBlocks(std::vector<std::vector<int32_t>>{kImage}, kShape, 80);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0],
            "\x1b[38;2;0;0;0;48;2;20;20;20m\u2580\x1b[38;2;10;10;10;48;2;30;30;30m\u2580\x1b[0m ");
  EXPECT_EQ(lines[1],
            "\x1b[38;2;40;40;40;48;2;0;0;0m\u2580\x1b[38;2;50;50;50;48;2;0;0;0m\u2580\x1b[0m ");
}

TEST(HalfBlocksTest, ShowsAsManyImagesAsFit) {
  const std::vector<std::vector<int32_t>> images(5, kImage);
  const std::string five = HalfBlocks(images, kShape, 80)[0];
  const std::string two = HalfBlocks(images, kShape, 8)[0];
  EXPECT_EQ(five.size(), HalfBlocks(std::span(images).first(1), kShape, 80)[0].size() * 5);
  EXPECT_EQ(two.size() * 5, five.size() * 2);
  EXPECT_TRUE(HalfBlocks(images, kShape, 2).empty());
}

TEST(HalfBlocksTest, LeavesOutImagesThatAreTooHigh) {
  const ImageShape high{64, 1, 1, 256};
  EXPECT_TRUE(
      HalfBlocks(std::vector<std::vector<int32_t>>(1, std::vector<int32_t>(64)), high, 80).empty());
}

}  // namespace
}  // namespace rivulet
