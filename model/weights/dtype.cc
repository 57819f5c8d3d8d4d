// SPDX-License-Identifier: Apache-2.0
// Every product and difference is rounded to float32 where numpy rounds it in gguf's `dequantize`,
// so that weights are the same bits. (The build forbids contraction to fused operations.)
#include "model/weights/dtype.h"

#include <bit>
#include <cstring>

#include "kernels/half.h"

namespace rivulet {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

constexpr DTypeLayout kLayouts[] = {
    {"F32", 1, 4},    {"F16", 1, 2},      {"BF16", 1, 2},     {"Q4_0", 32, 18},   {"Q5_0", 32, 22},
    {"Q8_0", 32, 34}, {"Q4_K", 256, 144}, {"Q5_K", 256, 176}, {"Q6_K", 256, 210},
};

template <typename T>
T Load(const char* bytes, size_t index = 0) {
  T value;
  std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
  return value;
}

float Half(const char* bytes) { return kernels::F16ToF32(Load<uint16_t>(bytes)); }
uint8_t Byte(const char* bytes, size_t index) { return static_cast<uint8_t>(bytes[index]); }

// Q4_0: d (F16), 16 bytes: the low halves are weights 0 to 15, the high halves 16 to 31.
void DecodeQ4_0(const char* block, float* out) {
  const float d = Half(block);
  for (size_t i = 0; i < 16; ++i) {
    const int q = Byte(block + 2, i);
    out[i] = d * static_cast<float>((q & 15) - 8);
    out[i + 16] = d * static_cast<float>((q >> 4) - 8);
  }
}

// Q5_0: d (F16), 32 fifth bits, then as Q4_0.
void DecodeQ5_0(const char* block, float* out) {
  const float d = Half(block);
  const auto high = Load<uint32_t>(block + 2);
  for (size_t i = 0; i < 16; ++i) {
    const int q = Byte(block + 6, i);
    const int low_bit = static_cast<int>(high >> i & 1), high_bit = int(high >> (i + 16) & 1);
    out[i] = d * static_cast<float>(((q & 15) | low_bit << 4) - 16);
    out[i + 16] = d * static_cast<float>(((q >> 4) | high_bit << 4) - 16);
  }
}

// Q8_0: d (F16), 32 signed bytes.
void DecodeQ8_0(const char* block, float* out) {
  const float d = Half(block);
  for (size_t i = 0; i < 32; ++i) out[i] = d * static_cast<float>(Load<int8_t>(block + 2, i));
}

// The scale and the minimum of group `j` of 32 weights of Q4_K and Q5_K: 6 bits each, packed into
// 12 bytes. Those of groups 4 to 7 have their upper 2 bits in the bytes of groups 0 to 3.
struct GroupScale {
  float scale, minimum;
};
GroupScale ScaleOf(const char* block, size_t j) {
  const char* packed = block + 4;
  int scale = 0, minimum = 0;
  if (j < 4) {
    scale = Byte(packed, j) & 63;
    minimum = Byte(packed, j + 4) & 63;
  } else {
    scale = (Byte(packed, j + 4) & 15) | (Byte(packed, j - 4) >> 6) << 4;
    minimum = (Byte(packed, j + 4) >> 4) | (Byte(packed, j) >> 6) << 4;
  }
  return {Half(block) * static_cast<float>(scale), Half(block + 2) * static_cast<float>(minimum)};
}

// Q4_K: d, dmin (F16), 12 bytes of scales, 128 bytes. Each 32 bytes are two groups: the low
// halves, then the high ones.
void DecodeQ4_K(const char* block, float* out) {
  for (size_t j = 0; j < 8; ++j) {
    const GroupScale group = ScaleOf(block, j);
    const char* quants = block + 16 + 32 * (j / 2);
    for (size_t i = 0; i < 32; ++i) {
      const int q = j % 2 == 0 ? Byte(quants, i) & 15 : Byte(quants, i) >> 4;
      out[32 * j + i] = group.scale * static_cast<float>(q) - group.minimum;
    }
  }
}

// Q5_K: as Q4_K with 32 bytes before the quants, whose bit j is the fifth bit of group j.
void DecodeQ5_K(const char* block, float* out) {
  for (size_t j = 0; j < 8; ++j) {
    const GroupScale group = ScaleOf(block, j);
    const char* quants = block + 48 + 32 * (j / 2);
    for (size_t i = 0; i < 32; ++i) {
      const int low = j % 2 == 0 ? Byte(quants, i) & 15 : Byte(quants, i) >> 4;
      const int q = low | (Byte(block + 16, i) >> j & 1) << 4;
      out[32 * j + i] = group.scale * static_cast<float>(q) - group.minimum;
    }
  }
}

// Q6_K: 128 bytes of low halves, 64 bytes of upper 2 bits, 16 signed scales, d (F16). Of each half
// of 128 weights, weight 32 g + i has its low bits in byte 32 (g % 2) + i, in the high half for
// g >= 2, and its upper bits in byte i at bit 2 g. A scale serves 16 weights.
void DecodeQ6_K(const char* block, float* out) {
  const float d = Half(block + 208);
  for (size_t n = 0; n < 256; ++n) {
    const size_t half = n / 128, g = n % 128 / 32, i = n % 32;
    const int low = Byte(block, 64 * half + 32 * (g % 2) + i) >> (g / 2 * 4) & 15;
    const int high = Byte(block + 128, 32 * half + i) >> (2 * g) & 3;
    const float scale = d * static_cast<float>(Load<int8_t>(block + 192, n / 16));
    out[n] = scale * static_cast<float>((low | high << 4) - 32);
  }
}

template <void (*kDecode)(const char*, float*)>
void DecodeAll(DType dtype, const char* bytes, size_t count, float* out) {
  const DTypeLayout& layout = LayoutOf(dtype);
  for (size_t i = 0; i < count; ++i) kDecode(bytes + i * layout.bytes, out + i * layout.weights);
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
  const size_t stride = LayoutOf(dtype).bytes;
  const auto halves = [&](size_t offset) {
    return !AnyNonFinite<uint16_t, 0x7C00u>(bytes + offset, count, stride);
  };
  switch (dtype) {
    case DType::kF32:
      return !AnyNonFinite<uint32_t, 0x7F800000u>(bytes, count);
    case DType::kBF16:
      return !AnyNonFinite<uint16_t, 0x7F80u>(bytes, count);
    case DType::kF16:
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kQ8_0:
      return halves(0);
    case DType::kQ4_K:
    case DType::kQ5_K:
      return halves(0) && halves(2);
    case DType::kQ6_K:
      return halves(208);
  }
  return false;
}

}  // namespace

const DTypeLayout& LayoutOf(DType dtype) { return kLayouts[static_cast<size_t>(dtype)]; }

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
    case DType::kQ4_0:
      return DecodeAll<DecodeQ4_0>(dtype, bytes, count, out);
    case DType::kQ5_0:
      return DecodeAll<DecodeQ5_0>(dtype, bytes, count, out);
    case DType::kQ8_0:
      return DecodeAll<DecodeQ8_0>(dtype, bytes, count, out);
    case DType::kQ4_K:
      return DecodeAll<DecodeQ4_K>(dtype, bytes, count, out);
    case DType::kQ5_K:
      return DecodeAll<DecodeQ5_K>(dtype, bytes, count, out);
    case DType::kQ6_K:
      return DecodeAll<DecodeQ6_K>(dtype, bytes, count, out);
  }
}

std::optional<size_t> FindNonFinite(DType dtype, const char* bytes, size_t count) {
  if (IsFinite(dtype, bytes, count)) return std::nullopt;
  size_t first = 0;
  while (IsFinite(dtype, bytes + first * LayoutOf(dtype).bytes, 1)) ++first;
  return first;
}

}  // namespace rivulet
