// SPDX-License-Identifier: Apache-2.0
// Blocks decoded as gguf's `dequantize` decodes them, bit for bit.
#include "model/weights/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model/base/sha256.h"
#include "model/loading/aligned_buffer.h"

namespace rivulet {
namespace {

constexpr size_t kBlocks = 64;

struct BlockCase {
  DType dtype;
  std::vector<size_t> scales;  // where in a block the F16 scales are
  const char* sha256;          // of the weights as float32
};

// tests/conformance/make_gguf.py --blocks prints the hashes: of what gguf 0.19.0 makes of the same
// bytes.
const std::vector<BlockCase>& BlockCases() {
  static const auto* const cases = new std::vector<BlockCase>{
      {DType::kQ4_0, {0}, "b898027311482795e3b3ec86f2c507c723e26e0dc6928abbb93065dd56d30a4c"},
      {DType::kQ4_1, {0, 2}, "d85182e3542dad27df10af4ff5cf3885e73b5be8ca540df928f612c4de0ce0b8"},
      {DType::kQ5_0, {0}, "b6f81b395603fa9598b52515cd365058012c42a9adccd49c54ae55285d5a5cf0"},
      {DType::kQ5_1, {0, 2}, "af296a3c3eaba5b00b390bf5aa1eb3cfddd4e2515319eecf4d760313cc0cf81d"},
      {DType::kQ8_0, {0}, "5cd30fbd5c5638425ca4d93fd54f9940b1f1c1e4c3f60f285f19c4f37e27f8c1"},
      {DType::kQ3_K, {108}, "db7d6ecb54fd5d148f9ce7f1f124f7d20362ae967cb403f50fcb74c140c5dabe"},
      {DType::kQ4_K, {0, 2}, "31ef4ef4b1ba3983278064e1b2b10cd22f1184a565833a7ae9d517bda9e1c07b"},
      {DType::kQ5_K, {0, 2}, "c47acdcad141e20b68ebf360b6910a81e17d548b15ce4561e3c662858a4bb39e"},
      {DType::kQ6_K, {208}, "d9b070473ff7851ad3a30bc804f3424c2cb8fcabd2960a0ae058772ae6cda1a6"},
      {DType::kIQ4_NL, {0}, "c6bc9fef3b546b585e8c71ba6418417169dc970c41fe80994c692f08e9d428d4"},
      {DType::kIQ4_XS, {0}, "f32cf53ff8986441f53f4c014921d18be666b5011ac77721715d583b8f74e396"},
  };
  return *cases;
}

// Bytes of a small generator, with scales below 2.
std::string RandomBlocks(const BlockCase& c) {
  const size_t size = LayoutOf(c.dtype).bytes;
  std::string bytes(kBlocks * size, '\0');
  uint32_t state = 1;
  for (char& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<char>(state >> 24);
  }
  for (size_t block = 0; block < kBlocks; ++block) {
    for (const size_t at : c.scales) bytes[block * size + at + 1] &= char(0xBF);
  }
  return bytes;
}

TEST(DTypeTest, BlocksAreDecodedAsGgufDecodesThem) {
  for (const BlockCase& c : BlockCases()) {
    SCOPED_TRACE(LayoutOf(c.dtype).name);
    const std::string bytes = RandomBlocks(c);
    std::vector<float> weights(kBlocks * LayoutOf(c.dtype).weights);
    DecodeBlocks(c.dtype, bytes.data(), kBlocks, weights.data());
    EXPECT_EQ(
        Sha256Hex({reinterpret_cast<const char*>(weights.data()), weights.size() * sizeof(float)}),
        c.sha256);
    EXPECT_TRUE(
        std::all_of(weights.begin(), weights.end(), [](float w) { return std::isfinite(w); }));
  }
}

TEST(DTypeTest, BlocksArePackedWithoutRounding) {
  for (const BlockCase& c : BlockCases()) {
    const DTypeLayout& layout = LayoutOf(c.dtype);
    std::string bytes = RandomBlocks(c);
    if (c.dtype == DType::kQ4_0) {  // 8 d fits F16
      for (size_t at = 1; at < bytes.size(); at += layout.bytes) bytes[at] &= char(0xAF);
    }
    const int k = int(kBlocks / 2 * layout.weights);  // of 2 columns
    const kernels::PackedMatrix w = {*PackedTypeOf(c.dtype), k, 2, nullptr};
    const AlignedBuffer panels(kernels::PackedSize(w.type, k, 2));
    std::vector<float> weights(kBlocks * layout.weights);
    DecodeBlocks(c.dtype, bytes.data(), kBlocks, weights.data());
    const int groups = int(layout.weights) / kernels::kQuantizedInputs;
    for (int block = 0; block < int(kBlocks); ++block) {
      const int column = block / int(kBlocks / 2), first = block % int(kBlocks / 2) * groups;
      ASSERT_TRUE(PackBlock(c.dtype, &bytes[size_t(block) * layout.bytes], k, column, first,
                            panels.data()));
    }
    size_t i = 0;
    for (int column = 0; column < 2; ++column) {
      for (int g = 0; g < k / kernels::kQuantizedInputs; ++g) {
        const auto group = kernels::UnpackGroup({w.type, k, 2, panels.data()}, column, g);
        for (int j = 0; j < kernels::kQuantizedInputs; ++j, ++i) {
          const auto q = float(static_cast<int8_t>(group.q[j]));
          ASSERT_EQ(group.Scale(j / 16) * q - group.Minimum(), weights[i])
              << layout.name << " weight " << i;
        }
      }
    }
  }
}

TEST(DTypeTest, AScaleThatIsNotFiniteIsFoundInItsBlock) {
  for (const BlockCase& c : BlockCases()) {
    const size_t size = LayoutOf(c.dtype).bytes;
    std::string bytes = RandomBlocks(c);
    EXPECT_EQ(FindNonFinite(c.dtype, bytes.data(), kBlocks), std::nullopt);
    for (const size_t at : c.scales) {
      for (const char* wrong : {"\x00\x7C", "\x01\xFC"}) {  // infinity, no number
        std::string damaged = bytes;
        damaged.replace(5 * size + at, 2, wrong, 2);
        damaged.replace(9 * size + at, 2, wrong, 2);
        EXPECT_EQ(FindNonFinite(c.dtype, damaged.data(), kBlocks), 5u) << LayoutOf(c.dtype).name;
      }
    }
  }
}

TEST(DTypeTest, NumbersAreBlocksOfOne) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    EXPECT_EQ(LayoutOf(dtype).weights, 1u);
  }
  const uint16_t halves[] = {0x3C00, 0x7C00};
  float one = 0;
  DecodeBlocks(DType::kF16, reinterpret_cast<const char*>(halves), 1, &one);
  EXPECT_EQ(one, 1.0f);
  EXPECT_EQ(FindNonFinite(DType::kF16, reinterpret_cast<const char*>(halves), 2), 1u);
}

TEST(DTypeTest, AScaleWhoseMinimumDoesNotFitIsNotPacked) {
  std::string block(LayoutOf(DType::kQ4_0).bytes, '\0');
  std::vector<float> panels(kernels::PackedSize(kernels::WeightType::kInt4, 32, 1) / 4);
  block[1] = 0x6F;  // 7168
  EXPECT_TRUE(PackBlock(DType::kQ4_0, block.data(), 32, 0, 0, panels.data()));
  block[1] = 0x70;  // 8192
  EXPECT_FALSE(PackBlock(DType::kQ4_0, block.data(), 32, 0, 0, panels.data()));
}

}  // namespace
}  // namespace rivulet
