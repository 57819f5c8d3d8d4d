// SPDX-License-Identifier: Apache-2.0
#include "model/weights/weights_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <future>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using testing::MakeTensor;
using testing::RawTensor;
using testing::TempDir;
using testing::WriteFile;
using testing::WriteSafetensors;

// Every malformed file is a change of this one: tensor a at bytes 0 to 24, tensor b at 24 to 32.
const std::vector<TensorSpec>& Specs() {
  static const auto* const specs = new std::vector<TensorSpec>{{"a", {2, 3}}, {"b", {4}}};
  return *specs;
}
constexpr char kA[] = R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]})";
constexpr char kB[] = R"("b":{"dtype":"F16","shape":[4],"data_offsets":[24,32]})";

std::string Zeros(size_t size) { return std::string(size, '\0'); }

// A header of these members.
std::string Header(const std::string& first, const std::string& second) {
  return absl::StrCat("{", first, ",", second, "}");
}

std::string A(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return absl::StrCat("\"a\":{\"dtype\":", dtype, ",\"shape\":", shape,
                      ",\"data_offsets\":", offsets, "}");
}

std::string LengthAndText(uint64_t length, const std::string& text) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + text;
}

absl::StatusOr<std::unique_ptr<WeightsFile>> OpenBytes(const TempDir& dir,
                                                       const std::string& bytes) {
  const std::string path = dir.File("w");
  EXPECT_TRUE(WriteFile(path, bytes).ok());
  return WeightsFile::Open(path, Specs());
}

struct BadFile {
  std::string bytes;
  std::vector<std::string> said;  // what the message must say, the tensor among it
};

void ExpectAllFilesRejected(const std::vector<BadFile>& cases) {
  const TempDir dir;
  for (size_t i = 0; i < cases.size(); ++i) {
    const absl::Status status = OpenBytes(dir, cases[i].bytes).status();
    SCOPED_TRACE(absl::StrCat("case ", i, ": ", status.ToString()));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    for (const std::string& said : cases[i].said) {
      EXPECT_TRUE(absl::StrContains(status.message(), said)) << said;
    }
    for (const char c : status.message()) EXPECT_GE(c, ' ');
  }
}

TEST(WeightsFileTest, NamesTheBrokenRuleOfTheHeader) {
  const std::string good = Header(kA, kB), data = Zeros(32);
  ASSERT_TRUE(OpenBytes(TempDir(), WriteSafetensors(good, data)).ok());
  const auto with = [&data](const std::string& header) { return WriteSafetensors(header, data); };
  const auto plus = [](const std::string& member) {
    return WriteSafetensors(absl::StrCat("{", kA, ",", kB, ",", member, "}"), Zeros(32));
  };
  ExpectAllFilesRejected({
      {"", {"header", "has 0 bytes"}},
      {"1234567", {"header", "has 7 bytes"}},
      {LengthAndText(100'000'001, good + data), {"header", "100000001", "at most 100000000"}},
      {LengthAndText(UINT64_MAX, good + data), {"header", "18446744073709551615"}},
      {LengthAndText(UINT64_MAX - 7, good + data), {"header", "at most"}},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
       {"Git LFS", "lfs pull"}},
      {LengthAndText(1000, good + data), {"header", "1000 bytes", "follow"}},
      {LengthAndText(1, ""), {"header", "only 0 follow"}},
      {LengthAndText(0, ""), {"header", "begins with \"\""}},
      {with(" " + good), {"header", "white space"}},
      {with("\n" + good), {"header", "white space"}},
      {with("\xEF\xBB\xBF" + good), {"header", "begins with"}},
      {with(good + "\n"), {"header", "ends with"}},
      {with(good + std::string(1, '\0')), {"header", "ends with"}},
      {with("[" + good + "]"), {"header", "begins with"}},
      {with("{" + std::string(30, ' ')), {"header", "ends with"}},
      {with("{}"), {"tensor \"a\"", "lacks it"}},
      {with("{}}"), {"header", "not valid JSON"}},
      {with(good + good), {"header", "not valid JSON"}},
      {with("{\"a\xFF\":1}"), {"header", "not valid JSON"}},
      {with(std::string("{\"a\":1}\0}", 9)), {"header", "NUL"}},
      {with(Header(kA, "\"b\":NaN")), {"header", "b ", "not valid JSON"}},
      {with(Header(kA, kA)), {"header", "a ", "twice"}},
      {plus(R"("a":{"dtype":"U8","shape":[32],"data_offsets":[0,32]})"), {"a ", "twice"}},
      {plus(R"("__metadata__":{"x":"1","x":"2"})"), {"__metadata__.x", "twice"}},
      {plus(R"("__metadata__":{},"__metadata__":{})"), {"__metadata__", "twice"}},
      {plus(R"("__metadata__":{"x":1})"), {"__metadata__", "\"x\" is 1"}},
      {plus(R"("__metadata__":{"x":null})"), {"__metadata__", "null"}},
      {plus(R"("__metadata__":"x")"), {"__metadata__", "object of strings"}},
      {plus(R"("__metadata__":[[[[[[[[[]]]]]]]]])"), {"__metadata__", "deeper than 8"}},
      {plus("\"" + std::string(513, 'n') + "\":1"), {"513 bytes", "at most 512"}},
      {plus(R"("c\nd":{"dtype":"F32","shape":[1],"data_offsets":[32,36]})"), {"tensor \"c\\nd\""}},
  });
}

TEST(WeightsFileTest, ReadsBlocksOfIntegersAndNamesWhatIsWrongWithThem) {
  const std::vector<TensorSpec> specs = {{"q", {2, 64}}};
  const TempDir dir;
  const auto open = [&](const std::string& entries, size_t bytes) {
    const std::string path = dir.File("weights");
    EXPECT_TRUE(WriteFile(path, WriteSafetensors("{" + entries + "}", Zeros(bytes))).ok());
    return WeightsFile::Open(path, specs);
  };
  const auto q4 = open(R"("q.q4_1":{"dtype":"U8","shape":[2,2,20],"data_offsets":[0,80]})", 80);
  ASSERT_TRUE(q4.ok()) << q4.status();
  EXPECT_EQ((*q4)->dtype("q"), DType::kQ4_1);
  std::vector<float> values(128, 1);
  EXPECT_TRUE((*q4)->Read("q", values).ok());
  EXPECT_EQ(values, std::vector<float>(128, 0));
  struct {
    const char* entries;
    size_t bytes;
    const char* said;
  } const cases[] = {
      {R"("q.q8_0":{"dtype":"F16","shape":[2,2,34],"data_offsets":[0,272]})", 272, "needs \"U8\""},
      {R"("q.q8_0":{"dtype":"U8","shape":[2,68],"data_offsets":[0,136]})", 136,
       "[rows, blocks, 34]"},
      {R"("q.q8_0":{"dtype":"U8","shape":[2,2,33],"data_offsets":[0,132]})", 132, "blocks, 34]"},
      {R"("q.q8_0":{"dtype":"U8","shape":[2,9223372036854775807,34],"data_offsets":[0,136]})", 136,
       "[rows, blocks, 34]"},
      {R"("q.q8_0":{"dtype":"U8","shape":[2,3,34],"data_offsets":[0,204]})", 204, "needs [2, 64]"},
      {R"("q.q8_0":{"dtype":"U8","shape":[2,2,34],"data_offsets":[0,132]})", 132, "need 136"},
      {R"("q":{"dtype":"U8","shape":[2,64],"data_offsets":[0,128]})", 128, "dtype is \"U8\""},
      {R"("q.q8_0":{"dtype":"U8","shape":[2,2,34],"data_offsets":[0,136]},)"
       R"("q.q4_1":{"dtype":"U8","shape":[2,2,20],"data_offsets":[136,216]})",
       216, "another type"},
      {R"("r.q8_0":{"dtype":"U8","shape":[2,2,34],"data_offsets":[0,136]})", 136, "no such tensor"},
  };
  for (const auto& c : cases) {
    const absl::Status status = open(c.entries, c.bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << c.entries;
    EXPECT_TRUE(absl::StrContains(status.message(), c.said)) << status;
  }
}

TEST(WeightsFileTest, NamesTheTensorWhoseEntryIsMalformed) {
  const std::string f32 = "\"F32\"", shape = "[2,3]", at = "[0,24]";
  const auto with_a = [](const std::string& a, size_t data_bytes = 32) {
    return WriteSafetensors(Header(a, kB), Zeros(data_bytes));
  };
  const std::string many = "[1,1,1,1,1,1,1,2,3]";
  ExpectAllFilesRejected({
      {with_a("\"a\":3"), {"tensor \"a\"", "is 3", "an object"}},
      {with_a("\"a\":{}"), {"tensor \"a\"", "dtype is missing"}},
      {with_a(R"("a":{"shape":[2,3],"data_offsets":[0,24]})"),
       {"tensor \"a\"", "dtype is missing"}},
      {with_a(R"("a":{"dtype":"F32","data_offsets":[0,24]})"),
       {"tensor \"a\"", "shape is missing"}},
      {with_a(R"("a":{"dtype":"F32","shape":[2,3]})"), {"tensor \"a\"", "data_offsets is missing"}},
      {with_a(R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24],"stride":1})"),
       {"tensor \"a\"", "unknown field \"stride\""}},
      {with_a(R"("a":{"dtype":"F32","dtype":"F32","shape":[2,3],"data_offsets":[0,24]})"),
       {"a.dtype", "twice"}},
      {with_a(A("\"F64\"", shape, at)), {"tensor \"a\"", "dtype", "\"F64\"", "BF16"}},
      {with_a(A("\"I8\"", shape, at)), {"tensor \"a\"", "\"I8\""}},
      {with_a(A("\"F4\"", shape, at)), {"tensor \"a\"", "\"F4\""}},
      {with_a(A("\"f32\"", shape, at)), {"tensor \"a\"", "\"f32\""}},
      {with_a(A("32", shape, at)), {"tensor \"a\"", "dtype is 32"}},
      {with_a(A(f32, "6", at)), {"tensor \"a\"", "shape is 6"}},
      {with_a(A(f32, "[2,-3]", at)), {"tensor \"a\"", "shape", "-3"}},
      {with_a(A(f32, "[2,3.0]", at)), {"tensor \"a\"", "shape", "3.0"}},
      {with_a(A(f32, "[2,\"3\"]", at)), {"tensor \"a\"", "shape", "\"3\""}},
      {with_a(A(f32, "[2,true]", at)), {"tensor \"a\"", "shape", "true"}},
      {with_a(A(f32, many, at)), {"tensor \"a\"", "9 dimensions", "at most 8"}},
      {with_a(A(f32, "[3,2]", at)), {"tensor \"a\"", "[3, 2]", "needs [2, 3]"}},
      {with_a(A(f32, "[6]", at)), {"tensor \"a\"", "[6]", "needs [2, 3]"}},
      {with_a(A(f32, "[2,3,1]", at)), {"tensor \"a\"", "[2, 3, 1]", "needs [2, 3]"}},
      {with_a(A(f32, "[]", "[0,4]")), {"tensor \"a\"", "[]", "needs [2, 3]"}},
      {with_a(A(f32, "[2,0]", "[0,0]")), {"tensor \"a\"", "[2, 0]", "no weight"}},
      {with_a(A(f32, "[2,18446744073709551614]", at)), {"tensor \"a\"", "18446744073709551614"}},
      {with_a(A(f32, "[2,9223372036854775807]", at)), {"tensor \"a\"", "64 bits"}},
      {with_a(A(f32, "[4294967296,4294967296]", "[0,0]")), {"tensor \"a\"", "64 bits"}},
      {with_a(A(f32, "[1e1,1]", at)), {"tensor \"a\"", "1e1"}},
      {with_a(A(f32, shape, "24")), {"tensor \"a\"", "data_offsets is 24"}},
      {with_a(A(f32, shape, "[0]")), {"tensor \"a\"", "array of 1"}},
      {with_a(A(f32, shape, "[0,12,24]")), {"tensor \"a\"", "array of 3"}},
      {with_a(A(f32, shape, "[-1,23]")), {"tensor \"a\"", "-1"}},
      {with_a(A(f32, shape, "[0,24.0]")), {"tensor \"a\"", "24.0"}},
      {with_a(A(f32, shape, "[0,\"24\"]")), {"tensor \"a\"", "\"24\""}},
      {with_a(A(f32, shape, "[24,0]")), {"tensor \"a\"", "before the begin"}},
      {with_a(A(f32, shape, "[0,1000]")), {"tensor \"a\"", "only 32"}},
      {with_a(A(f32, shape, "[0,9223372036854775807]")), {"tensor \"a\"", "only 32"}},
      {with_a(A(f32, shape, "[0,18446744073709551616]")), {"tensor \"a\"", "18446744073709551616"}},
      {with_a(A(f32, shape, "[0,20]")), {"tensor \"a\"", "span 20", "need 24"}},
      {with_a(A("\"F16\"", shape, at)), {"tensor \"a\"", "span 24", "need 12"}},
  });
}

TEST(WeightsFileTest, NamesTheTensorThatLeavesAGapOrOverlaps) {
  const auto b_at = [](int begin, size_t data_bytes) {
    return WriteSafetensors(
        Header(kA, absl::StrCat(R"("b":{"dtype":"F16","shape":[4],"data_offsets":[)", begin, ",",
                                begin + 8, "]}")),
        Zeros(data_bytes));
  };
  ExpectAllFilesRejected({
      {b_at(26, 34), {"tensor \"b\"", "gap", "begin at 24"}},
      {b_at(22, 32), {"tensor \"b\"", "overlap", "begin at 24"}},
      {b_at(0, 24), {"overlap"}},
      {b_at(8, 24), {"tensor \"b\"", "overlap"}},
      {WriteSafetensors(Header(kB, A("\"F32\"", "[2,3]", "[32,56]")), Zeros(56)),
       {"tensor \"b\"", "gap", "begin at 0"}},
      {b_at(24, 33), {"1 bytes that belong to no tensor"}},
      {b_at(24, 31), {"tensor \"b\"", "only 31"}},
      {b_at(24, 0), {"only 0"}},
  });
}

TEST(WeightsFileTest, NamesAbsentAndSurplusTensors) {
  ExpectAllFilesRejected({
      {WriteSafetensors(absl::StrCat("{", kA, "}"), Zeros(24)), {"tensor \"b\"", "lacks it"}},
      {WriteSafetensors(absl::StrCat("{", kA, ",", kB,
                                     R"(,"c":{"dtype":"F32","shape":[1],"data_offsets":[32,36]}})"),
                        Zeros(36)),
       {"tensor \"c\"", "no such tensor"}},
      {WriteSafetensors(Header(A("\"F32\"", "[2,3]", "[0,24]"),
                               R"("B":{"dtype":"F16","shape":[4],"data_offsets":[24,32]})"),
                        Zeros(32)),
       {"tensor \"B\"", "no such tensor"}},
  });
}

TEST(WeightsFileTest, AcceptsAnyOrderOfKeysTrailingSpacesAndMetadata) {
  const TempDir dir;
  for (const std::string& header :
       {Header(kB, kA), Header(kA, kB) + std::string(100, ' '),
        absl::StrCat("{ \"__metadata__\" : {\"x\":\"1\"} ,", kA, "\n,\t", kB, "\r\n}"),
        Header(R"("a":{"data_offsets":[0,24],"shape":[2,3],"dtype":"F32"})", kB)}) {
    EXPECT_TRUE(OpenBytes(dir, WriteSafetensors(header, Zeros(32))).ok()) << header;
  }
}

TEST(WeightsFileTest, RefusesWhatIsNoRegularFileWithoutWaiting) {
  const TempDir dir;
  EXPECT_TRUE(absl::IsNotFound(WeightsFile::Open(dir.File("absent"), Specs()).status()));
  const absl::Status directory = WeightsFile::Open(dir.path(), Specs()).status();
  EXPECT_TRUE(absl::StrContains(directory.message(), "it is a directory")) << directory;
  ASSERT_EQ(mkfifo(dir.File("fifo").c_str(), 0600), 0);
  const absl::Status fifo = WeightsFile::Open(dir.File("fifo"), Specs()).status();
  EXPECT_TRUE(absl::StrContains(fifo.message(), "it is a FIFO")) << fifo;
  EXPECT_TRUE(absl::IsDataLoss(WeightsFile::Open("/dev/null", Specs()).status()));
}

TEST(WeightsFileTest, DecodesEveryF16AndBF16Exactly) {
  std::vector<RawTensor> tensors(2);
  for (auto& tensor : tensors) tensor.shape = {65536 - 2048};
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const char bytes[] = {static_cast<char>(bits & 0xFF), static_cast<char>(bits >> 8)};
    if ((bits & 0x7C00) != 0x7C00) tensors[0].bytes.append(bytes, 2);
    if ((bits & 0x7F80) != 0x7F80) tensors[1].bytes.append(bytes, 2);
  }
  tensors[0].name = "f16", tensors[0].dtype = "F16";
  tensors[1].name = "bf16", tensors[1].dtype = "BF16", tensors[1].shape = {65536 - 256};
  const TempDir dir;
  ASSERT_TRUE(WriteFile(dir.File("w"), WriteSafetensors(tensors)).ok());
  const auto file = WeightsFile::Open(
      dir.File("w"), std::vector<TensorSpec>{{"f16", {65536 - 2048}}, {"bf16", {65536 - 256}}});
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Sha256().ok());
  EXPECT_EQ((*file)->dtype("f16"), DType::kF16);
  EXPECT_EQ((*file)->dtype("bf16"), DType::kBF16);

  // From the formats' definition: (-1)^sign * 2^(exponent - bias) * 1.fraction, without the 1 at
  // exponent 0.
  const auto define = [](uint32_t bits, int fraction_bits) {
    const int exponent = static_cast<int>((bits & 0x7FFF) >> fraction_bits);
    const int bias = fraction_bits == 10 ? 15 : 127;
    const double fraction =
        std::ldexp(static_cast<double>(bits & ((1u << fraction_bits) - 1)), -fraction_bits);
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
    return bits & 0x8000 ? -magnitude : magnitude;
  };
  for (const auto& [name, exponents, fraction_bits, count] :
       {std::tuple("f16", 0x7C00u, 10, 65536 - 2048),
        std::tuple("bf16", 0x7F80u, 7, 65536 - 256)}) {
    std::vector<float> out(static_cast<size_t>(count));
    ASSERT_TRUE((*file)->Read(name, out).ok());
    size_t i = 0;
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      if ((bits & exponents) == exponents) continue;
      ASSERT_EQ(static_cast<double>(out[i]), define(bits, fraction_bits)) << name << " " << bits;
      ASSERT_EQ(std::signbit(out[i]), bits >= 0x8000) << name << " " << bits;
      ++i;
    }
  }
}

TEST(WeightsFileTest, ReadsTensorsThatLieUnalignedAndInAnyOrder) {
  // c is one F16 value, so a's float32 values begin 2 bytes off; the header's odd length shifts
  // all.
  const std::string header = R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},)"
                             R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}})" +
                             std::string(3, ' ');
  const RawTensor b = MakeTensor("b", {4}, DType::kBF16, std::vector<float>{1, -2, 0.5f, 0});
  const RawTensor a =
      MakeTensor("a", {2, 3}, DType::kF32, std::vector<float>{1, 2, 3, 4, 5, -0.1f});
  const TempDir dir;
  const auto file = OpenBytes(dir, WriteSafetensors(header, b.bytes + a.bytes));
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<float> values(6);
  ASSERT_TRUE((*file)->Read("a", values).ok());
  EXPECT_THAT(values, ElementsAre(1, 2, 3, 4, 5, -0.1f));
  values.resize(4);
  ASSERT_TRUE((*file)->Read("b", values).ok());
  EXPECT_THAT(values, ElementsAre(1, -2, 0.5f, 0));
}

TEST(WeightsFileTest, NamesTensorAndIndexOfEveryNonFiniteWeight) {
  const TempDir dir;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> values(6, 1.0f);
      values[4] = bad;
      const std::vector<RawTensor> tensors = {
          MakeTensor("a", {2, 3}, dtype, values),
          MakeTensor("b", {4}, DType::kF16, std::vector<float>(4))};
      const auto file = OpenBytes(dir, WriteSafetensors(tensors));
      ASSERT_TRUE(file.ok()) << file.status();
      std::vector<float> out(6);
      for (const absl::Status& status : {(*file)->Read("a", out), (*file)->Sha256().status()}) {
        EXPECT_TRUE(absl::IsDataLoss(status)) << status;
        EXPECT_TRUE(absl::StrContains(status.message(), "tensor \"a\": the weight at index 4"))
            << status;
      }
      EXPECT_TRUE((*file)->Read("b", std::span<float>(out).first(4)).ok());
    }
  }
}

TEST(WeightsFileTest, FindsANonFiniteWeightBehindTheFirstPiece) {
  std::vector<float> values(700'001, 0.5f);  // 2.8 MB: three pieces
  values[700'000] = std::numeric_limits<float>::quiet_NaN();
  const TempDir dir;
  ASSERT_TRUE(WriteFile(dir.File("w"), WriteSafetensors(std::vector<RawTensor>{
                                           MakeTensor("w", {700'001}, DType::kF32, values)}))
                  .ok());
  const auto file = WeightsFile::Open(dir.File("w"), std::vector<TensorSpec>{{"w", {700'001}}});
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<float> out(values.size());
  for (const absl::Status& status : {(*file)->Read("w", out), (*file)->Sha256().status()}) {
    EXPECT_TRUE(absl::StrContains(status.message(), "index 700000")) << status;
  }
}

TEST(WeightsFileTest, HashesTheWholeFile) {
  const TempDir dir;
  const auto file = OpenBytes(dir, WriteSafetensors(Header(kA, kB), Zeros(32)));
  ASSERT_TRUE(file.ok()) << file.status();
  // sha256sum of 8 bytes of length, the header and 32 zeros.
  EXPECT_EQ(*(*file)->Sha256(), "9cc3fde46dda136895669b069e6def139eb9f7575253f6ca380b710a197336e7");
}

TEST(WeightsFileTest, APacedHashWaitsForTheOtherReads) {
  constexpr int64_t kFloats = 1 << 20;  // four pieces
  const TempDir dir;
  const RawTensor w = MakeTensor("w", {kFloats}, DType::kF32, std::vector<float>(kFloats));
  ASSERT_TRUE(WriteFile(dir.File("w"), WriteSafetensors(std::vector<RawTensor>{w})).ok());
  const auto file = WeightsFile::OpenAny(dir.File("w"));
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string expected = *(*file)->Sha256();
  std::vector<float> half(kFloats / 2);
  for (const bool read : {true, false}) {
    (*file)->Pace(3 << 20);
    auto hash = std::async(std::launch::async, [&] { return (*file)->Sha256(); });
    EXPECT_EQ(hash.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
    if (read) {
      ASSERT_TRUE((*file)->ReadFrom("w", 0, half).ok());  // 2 MiB
    } else {
      (*file)->EndPace();
    }
    EXPECT_EQ(*hash.get(), expected);
  }
}

TEST(WeightsFileTest, NoticesAFileThatChangedAfterItWasOpened) {
  const std::string good = WriteSafetensors(Header(kA, kB), Zeros(32));
  std::vector<float> out(6);
  {
    const TempDir dir;
    const auto file = OpenBytes(dir, good);
    ASSERT_EQ(truncate(dir.File("w").c_str(), static_cast<off_t>(good.size() - 30)), 0);
    EXPECT_TRUE(absl::IsDataLoss((*file)->Read("a", out)));
    EXPECT_TRUE(absl::IsDataLoss((*file)->Sha256().status()));
  }
  {
    const TempDir dir;
    const auto file = OpenBytes(dir, good);
    const timespec times[2] = {{1000, 0}, {1000, 0}};  // same size, other time of change
    ASSERT_EQ(utimensat(AT_FDCWD, dir.File("w").c_str(), times, 0), 0);
    const absl::Status status = (*file)->Read("a", out);
    EXPECT_TRUE(absl::StrContains(status.message(), "changed")) << status;
    EXPECT_TRUE(absl::IsDataLoss((*file)->Sha256().status()));
  }
  {
    const TempDir dir;
    const std::string path = dir.File("w");
    const auto file = OpenBytes(dir, good);
    struct stat info = {};
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    ASSERT_EQ(truncate(path.c_str(), static_cast<off_t>(good.size() + 4)), 0);
    const timespec times[2] = {info.st_atim, info.st_mtim};  // other size, same time of change
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    EXPECT_TRUE(absl::IsDataLoss((*file)->Read("a", out)));
    EXPECT_TRUE(absl::IsDataLoss((*file)->Sha256().status()));
  }
}

}  // namespace
}  // namespace rivulet
