// SPDX-License-Identifier: Apache-2.0
#include "client/cli/image/png_grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <png.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "client/cli/output/output_file.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PngGridTest : public ::testing::Test {
 protected:
  // The file's pixels in `format`.
  std::vector<uint8_t> Read(png_uint_32 format, int64_t* width, int64_t* height) const {
    png_image png = {};
    png.version = PNG_IMAGE_VERSION;
    EXPECT_NE(png_image_begin_read_from_file(&png, path_.c_str()), 0) << png.message;
    EXPECT_EQ(png.format, format);
    *width = png.width;
    *height = png.height;
    std::vector<uint8_t> pixels(PNG_IMAGE_SIZE(png));
    EXPECT_NE(png_image_finish_read(&png, nullptr, pixels.data(), 0, nullptr), 0) << png.message;
    return pixels;
  }
  int64_t FilesThere() const {
    return std::distance(std::filesystem::directory_iterator(directory_.path()), {});
  }

  const testing::TempDir directory_;
  const std::string path_ = directory_.File("grid.png");
};

TEST_F(PngGridTest, PutsGrayImagesInRowsWithOnePixelBetween) {
  const std::vector<std::vector<int32_t>> images = {{0, 255}, {10, 20}, {30, 40}};
  ASSERT_TRUE(WritePngGrid(images, {1, 2, 1, 256}, 2, path_).ok());
  int64_t width = 0, height = 0;
  const std::vector<uint8_t> pixels = Read(PNG_FORMAT_GRAY, &width, &height);
  EXPECT_EQ(width, 5);
  EXPECT_EQ(height, 3);
  EXPECT_THAT(pixels, ElementsAre(0, 255, 64, 10, 20,  //
                                  64, 64, 64, 64, 64,  //
                                  30, 40, 64, 64, 64));
  EXPECT_EQ(FilesThere(), 1);
}

TEST_F(PngGridTest, WritesThreeChannelsAsRgb) {
  const std::vector<std::vector<int32_t>> images = {{1, 2, 3, 4, 5, 6}};
  ASSERT_TRUE(WritePngGrid(images, {2, 1, 3, 256}, 8, path_).ok());
  int64_t width = 0, height = 0;
  EXPECT_THAT(Read(PNG_FORMAT_RGB, &width, &height), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(width, 1);
  EXPECT_EQ(height, 2);
}

TEST_F(PngGridTest, StretchesLevelsToEightBits) {
  EXPECT_EQ(ToByte(0, 2), 0);
  EXPECT_EQ(ToByte(1, 2), 255);
  EXPECT_EQ(ToByte(3, 16), 51);
  EXPECT_EQ(ToByte(200, 256), 200);
  EXPECT_EQ(ToByte(256, 256), 255);
  EXPECT_EQ(ToByte(-1, 256), 0);
  EXPECT_EQ(ToByte(65535, 65536), 255);
}

TEST_F(PngGridTest, RefusesOtherChannelCounts) {
  EXPECT_TRUE(CheckPngShape({2, 2, 1, 256}).ok());
  EXPECT_TRUE(CheckPngShape({2, 2, 3, 256}).ok());
  const absl::Status status = CheckPngShape({2, 2, 2, 256});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 channels"));
}

TEST_F(PngGridTest, LeavesTheOldFileWhereTheNewOneCannotBe) {
  const std::vector<std::vector<int32_t>> images = {{0}};
  // A directory in the way: the rename fails after everything was written.
  std::filesystem::create_directories(path_ + "/inside");
  EXPECT_EQ(WritePngGrid(images, {1, 1, 1, 256}, 1, path_).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FilesThere(), 1);
  EXPECT_EQ(WritePngGrid(images, {1, 1, 1, 256}, 1, "/nonexistent/x.png").code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckWritable("/nonexistent/x.png").code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(PngGridTest, LeavesWhatIsNoRegularFileAlone) {
  const std::vector<std::vector<int32_t>> images = {{0}};
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  const std::string link = directory_.File("link");
  std::filesystem::create_symlink("grid.png", link);
  for (const std::string& out : {path_, link}) {
    for (const absl::Status& status :
         {CheckWritable(out), WritePngGrid(images, {1, 1, 1, 256}, 1, out)}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr("not a regular file"));
    }
  }
  EXPECT_TRUE(std::filesystem::is_fifo(path_));
  EXPECT_THAT(std::string(CheckWritable(directory_.path()).message()), HasSubstr("a directory"));
  EXPECT_EQ(FilesThere(), 2);
}

TEST_F(PngGridTest, ReplacesTheTargetOfASymlink) {
  const std::vector<std::vector<int32_t>> images = {{7}};
  const std::string link = directory_.File("link");
  std::filesystem::create_symlink("grid.png", link);
  EXPECT_THAT(std::string(CheckWritable(link).message()), HasSubstr("symlink to nothing"));
  EXPECT_FALSE(WritePngGrid(images, {1, 1, 1, 256}, 1, link).ok());
  std::ofstream(path_) << "old";
  ASSERT_EQ(chmod(path_.c_str(), 0640), 0);
  EXPECT_TRUE(CheckWritable(link).ok());
  EXPECT_TRUE(WritePngGrid(images, {1, 1, 1, 256}, 1, link).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  struct stat found = {};
  ASSERT_EQ(stat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0640u);
  int64_t width = 0, height = 0;
  EXPECT_THAT(Read(PNG_FORMAT_GRAY, &width, &height), ElementsAre(7));
  EXPECT_EQ(FilesThere(), 2);
}

TEST_F(PngGridTest, KeepsAFileThatMayNotBeWritten) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everything";
  std::ofstream(path_) << "old";
  ASSERT_EQ(chmod(path_.c_str(), 0440), 0);
  EXPECT_EQ(CheckWritable(path_).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(WritePngGrid(std::vector<std::vector<int32_t>>{{0}}, {1, 1, 1, 256}, 1, path_).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(PngGridTest, LimitsTheSizeOfTheGrid) {
  EXPECT_TRUE(CheckPngGrid({28, 28, 1, 256}, 65536, 256).ok());
  EXPECT_THAT(std::string(CheckPngGrid({28, 28, 1, 256}, 65536, 65536).message()),
              HasSubstr("1900543 x 28 pixels"));
  EXPECT_THAT(std::string(CheckPngGrid({28, 28, 1, 256}, 65536, 1).message()),
              HasSubstr("choose other --columns"));
  EXPECT_THAT(std::string(CheckPngGrid({255, 255, 3, 256}, 65536, 256).message()),
              HasSubstr("--count"));
}

TEST_F(PngGridTest, ChecksThatAFileCanBeWrittenWithoutLeavingOne) {
  EXPECT_TRUE(CheckWritable(path_).ok());
  EXPECT_EQ(FilesThere(), 0);
}

}  // namespace
}  // namespace rivulet
