// SPDX-License-Identifier: Apache-2.0
#include "client/cli/input/line_reader.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class LineReaderTest : public ::testing::Test {
 protected:
  std::vector<std::string> LinesOf(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
    LineReader reader(path_);
    std::vector<std::string> lines;
    while (true) {
      EXPECT_TRUE(reader.ready());
      const auto line = reader.Next();
      EXPECT_TRUE(line.ok()) << line.status();
      if (!line.ok() || !line->has_value()) return lines;
      lines.emplace_back(**line);
    }
  }

  const testing::TempDir directory_;
  const std::string path_ = directory_.File("input");
};

TEST_F(LineReaderTest, ReadsLinesOfEveryLength) {
  EXPECT_THAT(LinesOf(""), IsEmpty());
  EXPECT_THAT(LinesOf("\n"), ElementsAre(""));
  EXPECT_THAT(LinesOf("a\n\nb"), ElementsAre("a", "", "b"));
  const std::string chunk(1 << 16, 'x'), much(300'001, 'y');
  EXPECT_THAT(LinesOf(absl::StrCat(chunk, "\n", much, "\nz\n", much)),
              ElementsAre(chunk, much, "z", much));
}

TEST_F(LineReaderTest, IsReadyOnceAWholeLineIsThere) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  const int writer = open(path_.c_str(), O_RDWR);
  ASSERT_GE(writer, 0);
  const auto put = [&](const char* text) {
    return write(writer, text, std::strlen(text)) == static_cast<ssize_t>(std::strlen(text));
  };
  LineReader reader(path_);
  EXPECT_FALSE(reader.ready());
  ASSERT_TRUE(put("one\ntw"));
  EXPECT_TRUE(reader.ready());
  EXPECT_EQ(**reader.Next(), "one");
  EXPECT_FALSE(reader.ready());
  ASSERT_TRUE(put("o\n"));
  EXPECT_TRUE(reader.ready());
  EXPECT_EQ(**reader.Next(), "two");
  ASSERT_TRUE(put("end"));
  EXPECT_FALSE(reader.ready());
  close(writer);
  EXPECT_TRUE(reader.ready());
  EXPECT_EQ(**reader.Next(), "end");
  EXPECT_FALSE(reader.Next()->has_value());
}

TEST_F(LineReaderTest, SaysWhatCannotBeRead) {
  LineReader directory(directory_.path());
  ASSERT_TRUE(directory.is_open());
  EXPECT_TRUE(directory.ready());
  const auto line = directory.Next();
  ASSERT_EQ(line.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(line.status().message()),
              HasSubstr(absl::StrCat(directory_.path(), ": cannot be read: ")));
  EXPECT_FALSE(LineReader(path_).is_open());
}

}  // namespace
}  // namespace rivulet
