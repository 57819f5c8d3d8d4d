// SPDX-License-Identifier: Apache-2.0
// GGUF files, right and wrong: each wrong one gets one clear error.
#include "model/weights/gguf_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/sha256.h"
#include "model/weights/weights_file.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using testing::GgufFile;
using testing::GgufTensor;
using testing::Raw;
using testing::RawArray;
using testing::RawBool;
using testing::RawF32;
using testing::RawI32;
using testing::RawI32s;
using testing::RawString;
using testing::RawText;
using testing::RawTexts;
using testing::RawU32;
using testing::TempDir;
using testing::WriteFile;

// F32 numbers; a block of Q8_0 with the scale 1 and the integers 0 to 31; 256 weights of Q4_K.
std::string Floats(const std::vector<float>& values) {
  std::string bytes;
  for (const float value : values) bytes += Raw(value);
  return bytes;
}
std::string Q8Block() {
  std::string block("\x00\x3C", 2);
  for (char i = 0; i < 32; ++i) block += i;
  return block;
}

// Every malformed file is a change of this one.
GgufFile Good() {
  GgufFile file;
  file.metadata = {{"general.architecture", RawString("x")},
                   {"x.block_count", RawU32(2)},
                   {"x.eps", RawF32(0.5f)},
                   {"x.flag", RawBool(1)},
                   {"x.texts", RawTexts({"a", "", "bcd"})},
                   {"x.numbers", RawI32s({1, -2, 3})}};
  file.tensors = {{"one", {3, 2}, 0, Floats({1, 2, 3, 4, 5, 6})},
                  {"two", {32, 2}, 8, Q8Block() + Q8Block()},
                  {"three", {4}, 0, Floats({7, 8, 9, 10})}};
  return file;
}

class GgufHeaderTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<WeightsFile>> Open(const std::string& bytes) {
    const std::string path = directory_.File("m.gguf");
    EXPECT_TRUE(WriteFile(path, bytes).ok());
    return WeightsFile::OpenGguf(
        path, [](const GgufMetadata&) { return absl::OkStatus(); }, &metadata_);
  }

  TempDir directory_;
  GgufMetadata metadata_;
};

TEST_F(GgufHeaderTest, ReadsMetadata) {
  ASSERT_TRUE(Open(Good().Bytes()).ok());
  EXPECT_EQ(metadata_.size(), 6u);
  EXPECT_EQ(metadata_["general.architecture"].Text(), "x");
  EXPECT_EQ(metadata_["x.block_count"].Integer(), 2);
  EXPECT_EQ(metadata_["x.block_count"].Number(), 2.0);
  EXPECT_EQ(metadata_["x.eps"].Number(), 0.5);
  EXPECT_EQ(metadata_["x.flag"].Bool(), true);
  EXPECT_THAT(*metadata_["x.texts"].Texts(), ElementsAre("a", "", "bcd"));
  EXPECT_THAT(*metadata_["x.numbers"].Integers(), ElementsAre(1, -2, 3));
  // Another type is no value, and says what it is.
  EXPECT_EQ(metadata_["x.eps"].Integer(), std::nullopt);
  EXPECT_EQ(metadata_["x.flag"].Number(), std::nullopt);
  EXPECT_EQ(metadata_["x.texts"].Integers(), std::nullopt);
  EXPECT_EQ(metadata_["x.numbers"].Texts(), std::nullopt);
  EXPECT_EQ(metadata_["x.numbers"].Text(), std::nullopt);
  EXPECT_EQ(metadata_["x.numbers"].Describe(), "an array of 3 values");
  EXPECT_EQ(metadata_["x.eps"].Describe(), "the number 0.5");
}

TEST_F(GgufHeaderTest, ReadsIntegersOfEveryType) {
  GgufFile file = Good();
  const auto add = [&file](uint32_t type, const std::string& bytes) {
    file.Set(absl::StrCat("i", type), Raw(type) + bytes);
  };
  add(0, Raw(uint8_t{200}));
  add(1, Raw(int8_t{-100}));
  add(2, Raw(uint16_t{60000}));
  add(3, Raw(int16_t{-30000}));
  add(10, Raw(uint64_t{1} << 40));
  add(11, Raw(-(int64_t{1} << 40)));
  add(12, Raw(0.25));
  file.Set("huge", Raw(uint32_t{10}) + Raw(std::numeric_limits<uint64_t>::max()));
  ASSERT_TRUE(Open(file.Bytes()).ok());
  EXPECT_EQ(metadata_["i0"].Integer(), 200);
  EXPECT_EQ(metadata_["i1"].Integer(), -100);
  EXPECT_EQ(metadata_["i2"].Integer(), 60000);
  EXPECT_EQ(metadata_["i3"].Integer(), -30000);
  EXPECT_EQ(metadata_["i10"].Integer(), int64_t{1} << 40);
  EXPECT_EQ(metadata_["i11"].Integer(), -(int64_t{1} << 40));
  EXPECT_EQ(metadata_["i12"].Number(), 0.25);
  EXPECT_EQ(metadata_["huge"].Integer(), std::nullopt);
  EXPECT_EQ(metadata_["huge"].Describe(), "the number 18446744073709551615");
}

TEST_F(GgufHeaderTest, ReadsTensors) {
  for (const uint64_t alignment : {32, 64, 8}) {
    for (const bool padded : {false, true}) {
      GgufFile file = Good();
      file.alignment = alignment;
      file.padded = padded;
      file.Set("general.alignment", RawU32(static_cast<uint32_t>(alignment)));
      const std::string bytes = file.Bytes();
      const auto opened = Open(bytes);
      ASSERT_TRUE(opened.ok()) << opened.status();
      EXPECT_THAT((*opened)->tensors().find("one")->second.shape, ElementsAre(2, 3));
      EXPECT_EQ((*opened)->dtype("two"), DType::kQ8_0);
      std::vector<float> three(4);
      ASSERT_TRUE((*opened)->Read("three", three).ok());
      EXPECT_THAT(three, ElementsAre(7, 8, 9, 10));
      EXPECT_EQ(*(*opened)->Sha256(), Sha256Hex(bytes));
    }
  }
}

TEST_F(GgufHeaderTest, AnyRangeOfABlockTensorCanBeRead) {
  GgufFile file = Good();
  file.Tensor("two").extents = {128, 1};
  for (int i = 0; i < 2; ++i) file.Tensor("two").bytes += Q8Block();
  const auto opened = Open(file.Bytes());
  ASSERT_TRUE(opened.ok()) << opened.status();
  for (size_t first = 0; first < 128; first += 3) {
    for (size_t count = 0; first + count <= 128; ++count) {
      std::vector<float> weights(count, -1);
      ASSERT_TRUE((*opened)->ReadFrom("two", first, weights).ok());
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(weights[i], float((first + i) % 32));
    }
  }
  std::string block(34, '\0');
  ASSERT_TRUE((*opened)->ReadBlocks("two", 3, std::span(block)).ok());
  EXPECT_EQ(block, Q8Block());
}

TEST_F(GgufHeaderTest, AHeaderOfSeveralMebibytesIsRead) {
  GgufFile file = Good();
  file.Set("x.texts", RawTexts(std::vector<std::string>(200'000, "twenty bytes of text")));
  const auto opened = Open(file.Bytes());
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(metadata_["x.texts"].Texts()->size(), 200'000u);
}

TEST_F(GgufHeaderTest, AWeightOrScaleThatIsNotFiniteIsNamed) {
  GgufFile file = Good();
  file.Tensor("three").bytes = Floats({1, 2, 3, std::numeric_limits<float>::infinity()});
  std::vector<float> three(4), two(64);
  auto opened = Open(file.Bytes());
  ASSERT_TRUE(opened.ok());
  for (const absl::Status& status :
       {(*opened)->Read("three", three), (*opened)->Sha256().status()}) {
    EXPECT_TRUE(absl::IsDataLoss(status));
    EXPECT_TRUE(absl::StrContains(status.message(), "\"three\": the weight at index 3 is inf"));
  }
  file = Good();
  file.Tensor("two").bytes[34 + 1] = '\x7C';
  opened = Open(file.Bytes());
  ASSERT_TRUE(opened.ok());
  for (const absl::Status& status : {(*opened)->Read("two", two), (*opened)->Sha256().status()}) {
    EXPECT_EQ(GetErrorDetail(status).reason, "CORRUPT_WEIGHTS");
    EXPECT_TRUE(absl::StrContains(status.message(), "\"two\": a scale of the block at index 32"));
  }
}

struct BadGguf {
  std::function<void(GgufFile*)> change;
  std::string said;  // a part of the message
};

// What no file may be, as changes of a good one.
std::vector<BadGguf> BadFiles() {
  const auto key = [](const std::string& value) {
    return [value](GgufFile* f) { f->Set("x.eps", value); };
  };
  const auto one = [](const std::function<void(GgufTensor*)>& change) {
    return [change](GgufFile* f) { change(&f->tensors[0]); };
  };
  const auto shape = [&one](std::vector<uint64_t> extents) {
    return one([extents = std::move(extents)](GgufTensor* t) { t->extents = extents; });
  };
  const auto align = [](const std::string& value) {
    return [value](GgufFile* f) { f->Set("general.alignment", value); };
  };
  const uint64_t huge = std::numeric_limits<uint64_t>::max();
  const auto type = [](uint32_t number) { return Raw(number); };
  return {
      {[](GgufFile* f) { f->magic = "GGML"; }, "begins with \"GGML\""},
      {[](GgufFile* f) { f->magic = "FUGG"; }, "begins with \"FUGG\""},
      {[](GgufFile* f) { f->version = 0; }, "version is 0"},
      {[](GgufFile* f) { f->version = 1; }, "version is 1"},
      {[](GgufFile* f) { f->version = 4; }, "version is 4; allowed: 2 and 3"},
      {[](GgufFile* f) { f->version = 0x03000000; }, "big-endian"},
      {[](GgufFile* f) { f->num_tensors = int64_t{1} << 62; }, "number of tensors is 46116860184"},
      {[](GgufFile* f) { f->num_tensors = std::numeric_limits<int64_t>::max(); }, "tensors"},
      {[](GgufFile* f) { f->num_tensors = 20; }, "number of tensors is 20, more than the file"},
      {[](GgufFile* f) { f->num_tensors = 4; }, "tensor 3's name"},
      {[](GgufFile* f) { f->num_tensors = 2; }, "behind the last tensor"},
      {[](GgufFile* f) { f->num_keys = int64_t{1} << 62; }, "number of keys is 4611686018427"},
      {[](GgufFile* f) { f->num_keys = 40; }, "number of keys is 40, more than the file can hold"},
      {[](GgufFile* f) { f->num_keys = 7; }, "tensor 0's name takes 562949953421312 bytes"},
      {[](GgufFile* f) { f->num_keys = 5; }, "tensor \"x.numbers\": it has 9 dimensions"},
      {[](GgufFile* f) {
         for (int i = 0; i < 4096; ++i) f->Set(absl::StrCat("k", i), RawU32(1));
       },
       "number of keys is 4102; allowed: at most 4096"},
      {[](GgufFile* f) { f->metadata[1].first = ""; }, "key 1 has 0 bytes"},
      {[](GgufFile* f) { f->metadata[1].first = std::string(65536, 'k'); }, "has 65536 bytes"},
      {[](GgufFile* f) { f->metadata[1].first = "x.eps"; }, "key \"x.eps\": the file has it twice"},
      {[](GgufFile* f) { f->metadata[1].first = "a\nb", f->metadata[2].first = "a\nb"; },
       "key \"a\\nb\": the file has it twice"},
      {key(type(13)), "its type is 13"},
      {key(type(0xFFFFFFFF)), "its type is 4294967295"},
      {key(type(7) + std::string(1, '\2')), "a boolean is 2"},
      {key(RawArray(7, 2, std::string("\1\xFF", 2))), "a boolean is 255"},
      {key(RawArray(9, 1, RawArray(4, 1, Raw(1)))), "array of arrays"},
      {key(RawArray(9, 0, "")), "array of arrays"},
      {key(RawArray(13, 1, "a")), "elements of type 13"},
      {key(RawArray(0xFFFFFFFF, 0, "")), "elements of type 4294967295"},
      {key(RawArray(4, huge, "")), "has 18446744073709551615 elements, more than the file"},
      {key(RawArray(0, huge / 2, "")), "more than the file can hold"},
      {key(RawArray(10, huge / 8 + 1, "")), "more than the file can hold"},
      {key(RawArray(8, huge / 8 + 2, "")), "more than the file can hold"},
      {key(RawArray(8, 2, RawText("a") + Raw(huge))), "text 1 takes 18446744073709551615 bytes"},
      {key(RawArray(8, 1, Raw(uint64_t{100'000}))), "text 0 takes 100000 bytes"},
      {key(type(8) + Raw(huge)), "its value takes 18446744073709551615 bytes"},
      {key(type(8) + Raw(huge - 7)), "takes 18446744073709551608 bytes"},
      {key(type(8) + Raw(uint64_t{99'999})), "takes 99999 bytes at byte"},
      {align(RawU32(0)), "\"general.alignment\": it is the number 0"},
      {align(RawU32(24)), "powers of two"},
      {align(RawU32(1u << 21)), "powers of two up to 1048576"},
      {align(RawI32(-32)), "it is the number -32"},
      {align(RawString("32")), "it is the text \"32\""},
      {align(RawF32(32)), "it is the number 32"},
      {align(RawU32(64)), "no multiple of the alignment 64"},
      {one([](GgufTensor* t) { t->name = ""; }), "tensor 0's name has 0 bytes"},
      {one([](GgufTensor* t) { t->name = std::string(64, 'n'); }),
       "has 64 bytes; allowed: 1 to 63"},
      {one([](GgufTensor* t) { t->name = "two"; }), "tensor \"two\": the file has it twice"},
      {shape({}), "has 0 dimensions"},
      {shape({1, 1, 1, 2, 3}), "has 5 dimensions; allowed: 1 to 4"},
      {shape({0, 2}), "a dimension of 0"},
      {shape({3, 0}), "a dimension of 0"},
      {shape({huge}), "more elements than any file"},
      {shape({huge, 2}), "more elements than any file"},
      {shape({uint64_t{1} << 32, uint64_t{1} << 32}), "more elements than any file"},
      {shape({uint64_t{1} << 47, 4}), "more elements than any file"},
      {shape({uint64_t{1} << 40}), "end behind the file"},
      {shape({9, 2}), "they overlap"},
      {one([](GgufTensor* t) { t->type = 43; }), "\"one\": its type is 43"},
      {one([](GgufTensor* t) { t->type = 0xFFFFFFFF; }), "its type is 4294967295"},
      {one([](GgufTensor* t) { t->type = 8; }), "rows have 3 weights; Q8_0 needs a multiple of 32"},
      {[](GgufFile* f) { f->tensors[1].type = 12; }, "rows have 32 weights; Q4_K needs a multiple"},
      {one([](GgufTensor* t) { t->offset = 1; }), "its offset is 1, no multiple"},
      {one([](GgufTensor* t) { t->offset = 32; }), "there is a gap"},
      {one([](GgufTensor* t) { t->offset = int64_t{1} << 62; }), "end behind the file"},
      {[](GgufFile* f) { f->tensors[1].offset = 0; }, "they overlap"},
      {[](GgufFile* f) { f->tensors[1].offset = 64; }, "there is a gap"},
      {[](GgufFile* f) { f->tensors[2].offset = 96; }, "they overlap"},
      {[](GgufFile* f) { f->tensors[2].offset = 160; }, "there is a gap"},
      {[](GgufFile* f) { f->tensors[2].bytes.pop_back(); }, "\"three\": it ends at byte 144"},
      {[](GgufFile* f) { f->tensors[2].extents = {5}; }, "\"three\": it ends at byte 148"},
      {[](GgufFile* f) { f->tail = std::string(32, 'x'); }, "are 32 more bytes"},
      {[](GgufFile* f) { f->tail = std::string(5000, 'x'); }, "are 5000 more bytes"},
      {[](GgufFile* f) { f->tensors.clear(), f->tail = std::string(64, 'x'); }, "more bytes"},
  };
}

void ExpectOneClearError(const absl::Status& status, const std::string& said) {
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_EQ(GetErrorDetail(status).reason, "CORRUPT_WEIGHTS");
  EXPECT_TRUE(absl::StrContains(status.message(), said)) << said;
  for (const char c : status.message()) EXPECT_GE(c, ' ');
}

TEST_F(GgufHeaderTest, NamesWhatIsWrongWithAFile) {
  const std::vector<BadGguf> cases = BadFiles();
  EXPECT_GE(cases.size(), 60u);
  for (size_t i = 0; i < cases.size(); ++i) {
    GgufFile file = Good();
    cases[i].change(&file);
    const absl::Status status = Open(file.Bytes()).status();
    SCOPED_TRACE(absl::StrCat("case ", i, ": ", status.ToString()));
    ExpectOneClearError(status, cases[i].said);
  }
}

TEST_F(GgufHeaderTest, AFileThatEndsAnywhereBeforeItsEndIsRefused) {
  const std::string bytes = Good().Bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const absl::Status status = Open(bytes.substr(0, size)).status();
    SCOPED_TRACE(absl::StrCat(size, " bytes: ", status.ToString()));
    ExpectOneClearError(status, "");
  }
}

TEST_F(GgufHeaderTest, ATypeOfTensorThatIsNotReadIsRefusedByName) {
  for (const auto& [number, name] : std::vector<std::pair<uint32_t, std::string>>{{9, "Q8_1"},
                                                                                  {10, "Q2_K"},
                                                                                  {16, "IQ2_XXS"},
                                                                                  {21, "IQ3_S"},
                                                                                  {26, "I32"},
                                                                                  {28, "F64"},
                                                                                  {34, "TQ1_0"},
                                                                                  {39, "MXFP4"},
                                                                                  {42, "Q2_0"}}) {
    GgufFile file = Good();
    file.tensors[1].type = number;
    const absl::Status status = Open(file.Bytes()).status();
    EXPECT_EQ(GetErrorDetail(status).reason, "UNSUPPORTED_MODEL") << status;
    EXPECT_TRUE(absl::StrContains(
        status.message(), absl::StrCat("tensor \"two\" has the type ", name,
                                       "; supported: F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q3_K, "
                                       "Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, BF16 (docs/models.md)")))
        << status;
  }
}

}  // namespace
}  // namespace rivulet
