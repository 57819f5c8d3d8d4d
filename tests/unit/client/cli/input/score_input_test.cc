// SPDX-License-Identifier: Apache-2.0
#include "client/cli/input/score_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

#include "client/cli/output/text.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ScoreInputTest : public ::testing::Test {
 protected:
  void SetUp() override {
    v1::ImageContent* const image = image_.mutable_content()->mutable_image();
    image->set_height(2);
    image->set_width(2);
    image->set_channels(1);
    text_.mutable_content()->mutable_text()->set_alphabet("ab");
  }

  void Write(const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; }

  // Of every item in order; then the error, if one ended the input.
  struct Read {
    std::vector<ScoreItem> items;
    absl::Status status;
    int64_t text_bytes = 0;
    std::optional<int64_t> total = {};
  };
  static Read ReadAll(const ScoreOptions& options, const v1::GetModelReply& model) {
    Read read;
    auto input = OpenScoreInput(options, model, [](std::string text) {
      v1::TokenizeReply reply;  // two bytes a token, except the last
      for (size_t i = 0; i < text.size(); i += 2) {
        reply.add_ids(text[i]);
        reply.add_begins(static_cast<int64_t>(i));
        reply.add_ends(static_cast<int64_t>(std::min(i + 2, text.size())));
      }
      return absl::StatusOr<v1::TokenizeReply>(std::move(reply));
    });
    read.status = input.status();
    while (read.status.ok()) {
      auto item = (*input)->Next();
      read.status = item.status();
      if (!item.ok() || !item->has_value()) break;
      if (const absl::Status& wrong = (*item)->status; !wrong.ok()) {
        read.status =
            absl::Status(wrong.code(), (*item)->where + ": " + std::string(wrong.message()));
        break;
      }
      read.items.push_back(**std::move(item));
    }
    if (!input.ok()) return read;
    read.text_bytes = (*input)->text_bytes();
    read.total = (*input)->total();
    return read;
  }
  Read Lines(const std::string& bytes) {
    Write(bytes);
    ScoreOptions options;
    options.input = path_;
    return ReadAll(options, image_);
  }
  Read Text(const std::string& bytes, std::optional<double> tail) {
    Write(bytes);
    ScoreOptions options;
    options.text = path_;
    options.tail = tail;
    return ReadAll(options, text_);
  }
  Read Idx(const std::string& bytes, std::optional<int64_t> limit = std::nullopt) {
    Write(bytes);
    ScoreOptions options;
    options.idx = path_;
    options.limit = limit;
    return ReadAll(options, image_);
  }
  static std::string Message(const Read& read) { return std::string(read.status.message()); }

  const testing::TempDir directory_;
  const std::string path_ = directory_.File("input");
  v1::GetModelReply image_, text_;
};

const std::string kIdxHeader("\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x02", 16);

TEST_F(ScoreInputTest, NumbersLinesFromOne) {
  const Read read = Lines("{\"tokens\":[1]}\n{\"tokens\":[2]}");
  ASSERT_TRUE(read.status.ok()) << read.status;
  ASSERT_EQ(read.items.size(), 2u);
  EXPECT_EQ(read.items[1].where, path_ + ":2");
  EXPECT_THAT(std::get<std::vector<int32_t>>(read.items[1].content), ElementsAre(2));
}

TEST_F(ScoreInputTest, NamesTheLineThatIsBad) {
  const Read read = Lines("{\"tokens\":[1]}\n\n{\"tokens\":[1]}\n");
  EXPECT_EQ(read.items.size(), 1u);
  EXPECT_EQ(read.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(read), HasSubstr(path_ + ":2: the line is empty"));
}

TEST_F(ScoreInputTest, AcceptsAnEmptyFileAsNoLines) {
  const Read read = Lines("");
  EXPECT_TRUE(read.status.ok());
  EXPECT_TRUE(read.items.empty());
}

TEST_F(ScoreInputTest, RefusesFilesThatCannotBeRead) {
  ScoreOptions options;
  options.input = path_ + "-absent";
  EXPECT_EQ(ReadAll(options, image_).status.code(), absl::StatusCode::kNotFound);
  options.input = directory_.path();
  EXPECT_EQ(ReadAll(options, image_).status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ScoreInputTest, ReadsIdxImages) {
  const Read read = Idx(kIdxHeader + std::string("\0\x01\x02\xff\x05\x06\x07\x08", 8));
  ASSERT_TRUE(read.status.ok()) << read.status;
  ASSERT_EQ(read.items.size(), 2u);
  EXPECT_THAT(std::get<std::vector<int32_t>>(read.items[0].content), ElementsAre(0, 1, 2, 255));
  EXPECT_EQ(Idx(kIdxHeader + std::string(8, 'x'), 1).items.size(), 1u);
}

TEST_F(ScoreInputTest, ReadsCompressedIdxImages) {
  const std::string bytes = kIdxHeader + std::string(8, 'x');
  const gzFile file = gzopen(path_.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
  ScoreOptions options;
  options.idx = path_;
  EXPECT_EQ(ReadAll(options, image_).items.size(), 2u);
}

TEST_F(ScoreInputTest, RefusesWhatIsNoIdxFileOfTheModelsImages) {
  EXPECT_THAT(Message(Idx("no")), HasSubstr("IDX"));
  EXPECT_THAT(Message(Idx(std::string("\0\0\x08\x01\0\0\0\x02xx", 10))), HasSubstr("IDX"));
  EXPECT_THAT(Message(Idx(kIdxHeader.substr(0, 10))), HasSubstr("header"));
  EXPECT_THAT(Message(Idx(kIdxHeader + "12345678", 3)), HasSubstr("--limit: 3"));
  const Read cut = Idx(kIdxHeader + "1234567");
  EXPECT_EQ(cut.items.size(), 1u);
  EXPECT_THAT(Message(cut), HasSubstr(path_ + ":2"));
  std::string other = kIdxHeader;
  other[15] = 3;
  EXPECT_THAT(Message(Idx(other)), HasSubstr("2 x 3 x 1; the model's are 2 x 2 x 1"));
  ScoreOptions options;
  options.idx = path_;
  EXPECT_THAT(Message(ReadAll(options, text_)), HasSubstr("--idx"));
}

TEST_F(ScoreInputTest, TakesTheTailOfATextInCodePoints) {
  const auto text = [this](const std::string& bytes, std::optional<double> tail) {
    const Read read = Text(bytes, tail);
    EXPECT_TRUE(read.status.ok()) << read.status;
    return read.items.size() == 1 ? std::get<std::string>(read.items[0].content) : "no item";
  };
  EXPECT_EQ(text("abcdefghij", std::nullopt), "abcdefghij");
  EXPECT_EQ(text("abcdefghij", 0.1), "j");
  EXPECT_EQ(text("abcdefghijk", 0.1), "jk");  // int(0.9 * 11) = 9 stay out
  EXPECT_EQ(text("\u00e9\u00e8\u20ac\U0001f600", 0.5), "\u20ac\U0001f600");
  EXPECT_EQ(text("abc", 1.0), "abc");
}

TEST_F(ScoreInputTest, LimitsTheScoredTokensOfAText) {
  Write("abcdefghi");
  ScoreOptions options;
  options.text = path_;
  options.limit = 3;
  Read read = ReadAll(options, text_);  // without a bos the first token is not scored
  ASSERT_EQ(read.items.size(), 1u) << read.status;
  EXPECT_EQ(std::get<std::string>(read.items[0].content), "abcd");
  EXPECT_EQ(std::pair(read.text_bytes, read.total),
            std::pair(int64_t{3}, std::optional<int64_t>(3)));
  text_.mutable_content()->mutable_text()->clear_alphabet();
  read = ReadAll(options, text_);
  ASSERT_EQ(read.items.size(), 1u) << read.status;
  EXPECT_THAT(std::get<std::vector<int32_t>>(read.items[0].content),
              ElementsAre('a', 'c', 'e', 'g'));
  EXPECT_EQ(std::pair(read.text_bytes, read.total),
            std::pair(int64_t{6}, std::optional<int64_t>(3)));
  options.limit = 5;
  EXPECT_THAT(Message(ReadAll(options, text_)), HasSubstr("holds 4 tokens to score"));
  text_.mutable_architecture()->set_bos_token_id(0);
  EXPECT_EQ(ReadAll(options, text_).text_bytes, 9);
}

// The pieces must be whole windows: what is scored in each from an empty state is what one request
// would score.
TEST_F(ScoreInputTest, CutsALongTextBetweenWindows) {
  std::string bytes;
  for (int i = 0; i < 20000; ++i) bytes += i % 3 == 0 ? "\u00e9" : "b";
  Write(bytes);
  ScoreOptions options;
  options.text = path_;
  options.window = 3000;
  const auto code_points = [](const ScoreItem& item) {
    return CodePointOffsets(std::get<std::string>(item.content)).size() - 1;
  };
  for (const bool has_bos : {true, false}) {
    if (has_bos) text_.mutable_architecture()->set_bos_token_id(2);
    if (!has_bos) text_.mutable_architecture()->clear_bos_token_id();
    const Read read = ReadAll(options, text_);
    ASSERT_TRUE(read.status.ok()) << read.status;
    ASSERT_EQ(read.items.size(), 7u);
    EXPECT_EQ(code_points(read.items[0]), has_bos ? 3000u : 3001u);
    EXPECT_EQ(code_points(read.items[6]), 2000u);
    EXPECT_TRUE(read.items[0].continues && read.items[5].continues);
    EXPECT_FALSE(read.items[6].continues);
    std::string again;
    for (const ScoreItem& item : read.items) {
      const std::string& piece = std::get<std::string>(item.content);
      // Without a bos the first code point was the last of the piece before.
      again += piece.substr(has_bos || again.empty() ? 0 : CodePointOffsets(piece)[1]);
    }
    EXPECT_EQ(again, bytes);
  }
  options.outputs = {0};  // positions count over the whole text
  EXPECT_EQ(ReadAll(options, text_).items.size(), 1u);
}

TEST_F(ScoreInputTest, KeepsAShortTextInOnePiece) {
  ScoreOptions options;
  options.text = path_;
  options.window = 1;
  for (const char* const bytes : {"a", "ab", "abc"}) {
    Write(bytes);
    const Read read = ReadAll(options, text_);
    ASSERT_EQ(read.items.size(), 1u) << bytes;
    EXPECT_EQ(std::get<std::string>(read.items[0].content), bytes);
    EXPECT_FALSE(read.items[0].continues);
  }
}

TEST_F(ScoreInputTest, RefusesTextThatIsNotUtf8) {
  EXPECT_THAT(Message(Text("ab\xff", std::nullopt)), HasSubstr("byte 2"));
}

}  // namespace
}  // namespace rivulet
