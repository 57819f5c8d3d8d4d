// SPDX-License-Identifier: Apache-2.0
// Every product and difference is rounded to float32 where numpy rounds it in gguf's `dequantize`,
// so that weights have the same bits. (The build forbids contraction to fused operations.)
#include "model/weights/dtype.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>

#include "absl/strings/match.h"
#include "kernels/half.h"

namespace rivulet {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

template <typename T>
T Load(const char* bytes, size_t index = 0) {
  T value;
  std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
  return value;
}

float Half(const char* bytes) { return kernels::F16ToF32(Load<uint16_t>(bytes)); }
uint8_t Byte(const char* bytes, size_t index) { return static_cast<uint8_t>(bytes[index]); }

using kernels::QuantizedGroup;
using kernels::WeightType;

// 16 bytes: the low halves are integers 0 to 15, the high halves 16 to 31. Plus `from`.
void SetHalves(QuantizedGroup* group, const char* bytes, int from) {
  for (size_t i = 0; i < 16; ++i) {
    const int q = Byte(bytes, i);
    group->q[i] = static_cast<uint8_t>((q & 15) + from);
    group->q[i + 16] = static_cast<uint8_t>((q >> 4) + from);
  }
}

void SetTable(QuantizedGroup* group, const char* bytes) {
  SetHalves(group, bytes, 0);
  for (uint8_t& q : group->q) q = static_cast<uint8_t>(kernels::kTableValues[q]);
}

// Adds 16 times bit i of `bits` to integer i.
void AddFifthBits(QuantizedGroup* group, const char* bits) {
  const auto high = Load<uint32_t>(bits);
  for (size_t i = 0; i < 32; ++i) {
    group->q[i] = static_cast<uint8_t>(group->q[i] + (high >> i & 1) * 16);
  }
}

// Q4_0: d (F16), 16 bytes.
void GroupsOfQ4_0(const char* block, QuantizedGroup* group) {
  group->d = Half(block);
  SetHalves(group, block + 2, -8);
}

// Q4_1: d, m (F16), 16 bytes; m is added.
void GroupsOfQ4_1(const char* block, QuantizedGroup* group) {
  group->d = Half(block);
  group->e = -Half(block + 2);
  SetHalves(group, block + 4, 0);
}

// Q5_0: d (F16), 32 fifth bits, then as Q4_0.
void GroupsOfQ5_0(const char* block, QuantizedGroup* group) {
  group->d = Half(block);
  SetHalves(group, block + 6, -16);
  AddFifthBits(group, block + 2);
}

// Q5_1: d, m (F16), 32 fifth bits, 16 bytes; m is added.
void GroupsOfQ5_1(const char* block, QuantizedGroup* group) {
  group->d = Half(block);
  group->e = -Half(block + 2);
  SetHalves(group, block + 8, 0);
  AddFifthBits(group, block + 4);
}

// Q8_0: d (F16), 32 signed bytes.
void GroupsOfQ8_0(const char* block, QuantizedGroup* group) {
  group->d = Half(block);
  std::memcpy(group->q, block + 2, 32);
}

// The scale and the minimum of group `j` of 32 weights of Q4_K and Q5_K: 6 bits each, packed into
// 12 bytes. For groups 4 to 7 the upper 2 bits are in the bytes of groups 0 to 3.
void SetKScale(const char* block, size_t j, QuantizedGroup* group) {
  const char* packed = block + 4;
  int scale = 0, minimum = 0;
  if (j < 4) {
    scale = Byte(packed, j) & 63;
    minimum = Byte(packed, j + 4) & 63;
  } else {
    scale = (Byte(packed, j + 4) & 15) | (Byte(packed, j - 4) >> 6) << 4;
    minimum = (Byte(packed, j + 4) >> 4) | (Byte(packed, j) >> 6) << 4;
  }
  group->d = Half(block);
  group->e = Half(block + 2);
  group->u[0] = group->u[1] = static_cast<int8_t>(scale);
  group->v = static_cast<uint8_t>(minimum);
}

// Each 32 bytes are two groups: the low halves, then the high ones.
void SetKHalves(const char* quants, size_t j, QuantizedGroup* group) {
  for (size_t i = 0; i < 32; ++i) {
    const uint8_t q = Byte(quants + 32 * (j / 2), i);
    group->q[i] = j % 2 == 0 ? q & 15 : q >> 4;
  }
}

// Q4_K: d, dmin (F16), 12 bytes of scales, 128 bytes.
void GroupsOfQ4_K(const char* block, QuantizedGroup* groups) {
  for (size_t j = 0; j < 8; ++j) {
    SetKScale(block, j, &groups[j]);
    SetKHalves(block + 16, j, &groups[j]);
  }
}

// Q5_K: as Q4_K with 32 bytes before the quants, whose bit j is the fifth bit of group j.
void GroupsOfQ5_K(const char* block, QuantizedGroup* groups) {
  for (size_t j = 0; j < 8; ++j) {
    SetKScale(block, j, &groups[j]);
    SetKHalves(block + 48, j, &groups[j]);
    for (size_t i = 0; i < 32; ++i) {
      groups[j].q[i] = static_cast<uint8_t>(groups[j].q[i] | (Byte(block + 16, i) >> j & 1) << 4);
    }
  }
}

// Q6_K: 128 bytes of low halves, 64 bytes of upper 2 bits, 16 signed scales, d (F16). In each half
// of 128 weights, weight 32 g + i has its low bits in byte 32 (g % 2) + i (in its high half for g
// >= 2), and its upper bits in byte i at bit 2 g. A scale serves 16 weights.
void GroupsOfQ6_K(const char* block, QuantizedGroup* groups) {
  for (size_t j = 0; j < 8; ++j) {
    const size_t half = j / 4, g = j % 4;
    for (size_t i = 0; i < 32; ++i) {
      const int low = Byte(block, 64 * half + 32 * (g % 2) + i) >> (g / 2 * 4) & 15;
      const int high = Byte(block + 128, 32 * half + i) >> (2 * g) & 3;
      groups[j].q[i] = static_cast<uint8_t>((low | high << 4) - 32);
    }
    groups[j].d = Half(block + 208);
    for (size_t k = 0; k < 2; ++k) groups[j].u[k] = Load<int8_t>(block + 192, 2 * j + k);
  }
}

// Q3_K: 32 bytes whose bit j is the third bit of group j, 64 bytes of lower 2 bits, 12 bytes of
// scales of 6 bits for 16 weights each, d (F16). Of each half of 128 weights, weight 32 g + i has
// its lower bits in byte i at bit 2 g.
void GroupsOfQ3_K(const char* block, QuantizedGroup* groups) {
  const char* const packed = block + 96;
  for (size_t j = 0; j < 8; ++j) {
    for (size_t i = 0; i < 32; ++i) {
      const int low = Byte(block + 32, 32 * (j / 4) + i) >> (2 * (j % 4)) & 3;
      groups[j].q[i] = static_cast<uint8_t>((low | (Byte(block, i) >> j & 1) << 2) - 4);
    }
    groups[j].d = Half(block + 108);
    for (size_t k = 2 * j; k < 2 * j + 2; ++k) {
      const int low = Byte(packed, k % 8) >> (k / 8 * 4) & 15;
      const int high = Byte(packed, 8 + k % 4) >> (k / 4 * 2) & 3;
      groups[j].u[k % 2] = static_cast<int8_t>((low | high << 4) - 32);
    }
  }
}

// IQ4_NL: d (F16), 16 bytes of indices.
void GroupsOfIQ4_NL(const char* block, QuantizedGroup* group) {
  group->d = Half(block);
  SetTable(group, block + 2);
}

// IQ4_XS: d (F16), the upper 2 bits of 8 scales, their lower 4 bits, 16 bytes of indices a group.
void GroupsOfIQ4_XS(const char* block, QuantizedGroup* groups) {
  for (size_t j = 0; j < 8; ++j) {
    const int low = Byte(block + 4, j / 2) >> (j % 2 * 4) & 15;
    const int high = Load<uint16_t>(block + 2) >> (2 * j) & 3;
    groups[j].d = Half(block);
    groups[j].u[0] = groups[j].u[1] = static_cast<int8_t>((low | high << 4) - 32);
    SetTable(&groups[j], block + 8 + 16 * j);
  }
}

struct DTypeTraits {
  DTypeLayout layout;
  size_t halves = 0;      // F16 numbers or scales of a block, one behind the other
  size_t first_half = 0;  // byte of the first of them
  void (*groups_of)(const char* block, QuantizedGroup* groups) = nullptr;  // null: numbers
  std::optional<WeightType> packed = std::nullopt;
};

// In the order of DType.
constexpr DTypeTraits kTraits[] = {
    {{"F32", 1, 4}},
    {{"F16", 1, 2}, 1},
    {{"BF16", 1, 2}},
    {{"Q4_0", 32, 18}, 1, 0, GroupsOfQ4_0, WeightType::kInt4},
    {{"Q4_1", 32, 20}, 2, 0, GroupsOfQ4_1, WeightType::kInt4},
    {{"Q5_0", 32, 22}, 1, 0, GroupsOfQ5_0, WeightType::kInt5Signed},
    {{"Q5_1", 32, 24}, 2, 0, GroupsOfQ5_1, WeightType::kInt5},
    {{"Q8_0", 32, 34}, 1, 0, GroupsOfQ8_0, WeightType::kInt8},
    {{"Q3_K", 256, 110}, 1, 108, GroupsOfQ3_K, WeightType::kQ6K},
    {{"Q4_K", 256, 144}, 2, 0, GroupsOfQ4_K, WeightType::kQ4K},
    {{"Q5_K", 256, 176}, 2, 0, GroupsOfQ5_K, WeightType::kQ5K},
    {{"Q6_K", 256, 210}, 1, 208, GroupsOfQ6_K, WeightType::kQ6K},
    {{"IQ4_NL", 32, 18}, 1, 0, GroupsOfIQ4_NL, WeightType::kIQ4NL},
    {{"IQ4_XS", 256, 136}, 1, 0, GroupsOfIQ4_XS, WeightType::kIQ4XS},
};
static_assert(std::size(kTraits) == static_cast<size_t>(DType::kIQ4_XS) + 1);

const DTypeTraits& TraitsOf(DType dtype) { return kTraits[static_cast<size_t>(dtype)]; }

void DecodeGroups(DType dtype, const char* bytes, size_t count, float* out) {
  const DTypeLayout& layout = LayoutOf(dtype);
  QuantizedGroup groups[kMaxBlockWeights / kernels::kQuantizedInputs];
  for (size_t block = 0; block < count; ++block) {
    GroupsOf(dtype, bytes + block * layout.bytes, groups);
    for (size_t i = 0; i < layout.weights; ++i) {
      const QuantizedGroup& group = groups[i / 32];
      const auto q = static_cast<float>(static_cast<int8_t>(group.q[i % 32]));
      out[block * layout.weights + i] = group.Scale(i % 32 / 16) * q - group.Minimum();
    }
  }
}

// Whether any exponent of `count` numbers, `stride` bytes apart, is all ones.
template <typename T, T kExponent>
bool AnyNonFinite(const char* bytes, size_t count, size_t stride = sizeof(T)) {
  bool found = false;
  for (size_t i = 0; i < count; ++i) {
    found |= (Load<T>(bytes + i * stride) & kExponent) == kExponent;
  }
  return found;
}

bool IsFinite(DType dtype, const char* bytes, size_t count) {
  if (dtype == DType::kF32) return !AnyNonFinite<uint32_t, 0x7F800000u>(bytes, count);
  if (dtype == DType::kBF16) return !AnyNonFinite<uint16_t, 0x7F80u>(bytes, count);
  const DTypeTraits& traits = TraitsOf(dtype);
  bool finite = true;
  for (size_t i = 0; i < traits.halves; ++i) {
    const char* const first = bytes + traits.first_half + i * sizeof(uint16_t);
    finite = finite && !AnyNonFinite<uint16_t, 0x7C00u>(first, count, traits.layout.bytes);
  }
  return finite;
}

}  // namespace

const DTypeLayout& LayoutOf(DType dtype) { return TraitsOf(dtype).layout; }

constexpr std::pair<DType, const char*> kSuffixes[] = {
    {DType::kQ8_0, ".q8_0"}, {DType::kQ4_1, ".q4_1"}, {DType::kQ4_K, ".q4_k"}};

std::string BlockSuffix(DType dtype) {
  for (const auto& [type, suffix] : kSuffixes) {
    if (type == dtype) return suffix;
  }
  return "";
}

std::optional<DType> BlockTypeOf(absl::string_view name) {
  for (const auto& [type, suffix] : kSuffixes) {
    if (absl::EndsWith(name, suffix)) return type;
  }
  return std::nullopt;
}

void DecodeBlocks(DType dtype, const char* bytes, size_t count, float* out) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out, bytes, count * sizeof(float));
      return;
    case DType::kF16:
      for (size_t i = 0; i < count; ++i) out[i] = kernels::F16ToF32(Load<uint16_t>(bytes, i));
      return;
    case DType::kBF16:
      for (size_t i = 0; i < count; ++i) out[i] = kernels::Bf16ToF32(Load<uint16_t>(bytes, i));
      return;
    default:
      return DecodeGroups(dtype, bytes, count, out);
  }
}

std::optional<WeightType> PackedTypeOf(DType dtype) { return TraitsOf(dtype).packed; }

void GroupsOf(DType dtype, const char* block, QuantizedGroup* groups) {
  TraitsOf(dtype).groups_of(block, groups);
}

bool PackBlock(DType dtype, const char* block, int k, int column, int first_group, void* panels) {
  QuantizedGroup groups[kMaxBlockWeights / kernels::kQuantizedInputs];
  GroupsOf(dtype, block, groups);
  for (int i = 0; i < int(LayoutOf(dtype).weights / kernels::kQuantizedInputs); ++i) {
    if (dtype == DType::kQ4_0) {  // s (q - 8) = s q - 8 s, exactly where 8 s is finite in F16
      if (!(std::fabs(groups[i].d) < 8192)) return false;
      groups[i].e = 8 * groups[i].d;
      for (uint8_t& q : groups[i].q) q = static_cast<uint8_t>(q + 8);
    }
    kernels::PackGroup(*PackedTypeOf(dtype), groups[i], k, column, first_group + i, panels);
  }
  return true;
}

std::optional<size_t> FindNonFinite(DType dtype, const char* bytes, size_t count) {
  if (IsFinite(dtype, bytes, count)) return std::nullopt;
  size_t first = 0;
  while (IsFinite(dtype, bytes + first * LayoutOf(dtype).bytes, 1)) ++first;
  return first;
}

}  // namespace rivulet
