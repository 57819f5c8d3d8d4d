// SPDX-License-Identifier: Apache-2.0
// Packing of weights of 8 and 4 bits: rounding at load, the same for every implementation.
#include "kernels/quantized.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/half.h"

namespace rivulet::kernels {
namespace {

constexpr uint16_t kInfinity = 0x7C00;  // F16

// The least F16 that is not below `value` >= 0: integers of a rounded-down scale would not fit.
uint16_t RoundUpToF16(float value) {
  const uint16_t half = F32ToF16(value);
  return F16ToF32(half) < value ? uint16_t(half + 1) : half;
}

// To the nearest integer, ties to even; |x| < 2^22. Unlike std::nearbyint it is no call, so the
// loops below become vectors.
float RoundToEven(float x) {
  constexpr float kShift = 0x1.8p23f;
  return (x + kShift) - kShift;
}

// The least and the greatest of a group of whole inputs, by lanes so that it becomes vectors.
std::pair<float, float> Range(const float* w) {
  constexpr int kLanes = 8;
  float low[kLanes], high[kLanes];
  std::copy_n(w, kLanes, low);
  std::copy_n(w, kLanes, high);
  for (int i = kLanes; i < kQuantizedInputs; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      low[j] = std::min(low[j], w[i + j]);
      high[j] = std::max(high[j], w[i + j]);
    }
  }
  return {*std::min_element(low, low + kLanes), *std::max_element(high, high + kLanes)};
}

// The integers of a group, and what they are multiplied with.
struct Group {
  uint16_t scale = 0, minimum = 0;  // F16
  uint8_t bits[kQuantizedInputs] = {};
};

// q = round(w / s).
Group RoundToInt8(const float* w) {
  Group group;
  const auto [low, high] = Range(w);
  group.scale = RoundUpToF16(std::max(-low, high) / 127);
  const float inverse = group.scale == 0 ? 0 : 1 / F16ToF32(group.scale);
  for (int i = 0; i < kQuantizedInputs; ++i) {
    const float q = RoundToEven(std::clamp(w[i] * inverse, -127.0f, 127.0f));
    group.bits[i] = static_cast<uint8_t>(static_cast<int>(q));
  }
  return group;
}

// q = round((w + m) / s), 0 .. 15.
Group RoundToInt4(const float* w) {
  Group group;
  const auto [low, high] = Range(w);
  group.minimum = F32ToF16(-low);
  const float minimum = F16ToF32(group.minimum);
  group.scale = RoundUpToF16(std::max(high + minimum, 0.0f) / 15);
  const float inverse = group.scale == 0 ? 0 : 1 / F16ToF32(group.scale);
  for (int i = 0; i < kQuantizedInputs; ++i) {
    const float q = RoundToEven(std::clamp((w[i] + minimum) * inverse, 0.0f, 15.0f));
    group.bits[i] = static_cast<uint8_t>(static_cast<int>(q));
  }
  return group;
}

bool IsFinite(uint16_t half) { return (half & kInfinity) != kInfinity; }

// Of group `g`, the block that has column `column`.
size_t BlockAt(WeightType type, int k, int column, int g) {
  const size_t panel = size_t(column / kPanelColumns);
  return (panel * size_t(QuantizedGroups(k)) + size_t(g)) * QuantizedBlockBytes(type);
}

// Where the integer of input `i` of a group stands in a block, without its half.
size_t ValueAt(WeightType type, int column, int i) {
  const bool int4 = type == WeightType::kInt4;
  const size_t word = size_t(i % (int4 ? 16 : 32) / 4);
  return (int4 ? kInt4Values : kInt8Values) +
         (word * kPanelColumns + size_t(column % kPanelColumns)) * 4 + size_t(i % 4);
}

void Store(WeightType type, const Group& group, int column, uint8_t* block) {
  const size_t lane = size_t(column % kPanelColumns);
  std::memcpy(block + kBlockScales + lane * 2, &group.scale, 2);
  uint8_t bits[kQuantizedInputs];
  std::copy_n(group.bits, kQuantizedInputs, bits);
  size_t words = kQuantizedInputs / 4, values = kInt8Values;
  if (type == WeightType::kInt4) {
    std::memcpy(block + kInt4Minima + lane * 2, &group.minimum, 2);
    for (int i = 0; i < 16; ++i) bits[i] = uint8_t(bits[i] | (bits[i + 16] << 4));
    words = kQuantizedInputs / 8;
    values = kInt4Values;
  }
  for (size_t word = 0; word < words; ++word) {
    std::memcpy(block + values + (word * kPanelColumns + lane) * 4, bits + word * 4, 4);
  }
}

float Load16(const uint8_t* at) {
  uint16_t half = 0;
  std::memcpy(&half, at, 2);
  return F16ToF32(half);
}

}  // namespace

bool PackQuantized(WeightType type, const float* w, int n, int k, int column_begin, void* panels) {
  bool finite = true;
  for (int row = 0; row < n; ++row) {
    const float* const in = w + size_t(row) * size_t(k);
    const int column = column_begin + row;
    for (int g = 0; g < QuantizedGroups(k); ++g) {
      const float* whole = in + g * kQuantizedInputs;
      float filled[kQuantizedInputs];
      const int left = k - g * kQuantizedInputs;
      if (left < kQuantizedInputs) {  // with its last weight, which widens no range
        std::copy_n(whole, left, filled);
        std::fill_n(filled + left, kQuantizedInputs - left, whole[left - 1]);
        whole = filled;
      }
      const Group group = type == WeightType::kInt8 ? RoundToInt8(whole) : RoundToInt4(whole);
      finite = finite && IsFinite(group.scale) && IsFinite(group.minimum);
      Store(type, group, column, static_cast<uint8_t*>(panels) + BlockAt(type, k, column, g));
    }
  }
  return finite;
}

void UnpackQuantized(const PackedMatrix& w, int column, float* out) {
  for (int i = 0; i < w.k; ++i) {
    const int inner = i % kQuantizedInputs;
    const uint8_t* const block =
        static_cast<const uint8_t*>(w.panels) + BlockAt(w.type, w.k, column, i / kQuantizedInputs);
    const size_t lane = size_t(column % kPanelColumns);
    const float scale = Load16(block + kBlockScales + lane * 2);
    const uint8_t bits = block[ValueAt(w.type, column, inner)];
    if (w.type == WeightType::kInt8) {
      out[i] = scale * float(static_cast<int8_t>(bits));
    } else {
      const float q = float(inner < 16 ? bits & 15 : bits >> 4);
      out[i] = std::fma(scale, q, -Load16(block + kInt4Minima + lane * 2));
    }
  }
}

}  // namespace rivulet::kernels
