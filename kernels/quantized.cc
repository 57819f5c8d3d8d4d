// SPDX-License-Identifier: Apache-2.0
// Packing of weights of 8 and 4 bits: rounding at load, the same for every implementation.
#include "kernels/quantized.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/half.h"

namespace rivulet::kernels {
namespace {

constexpr uint16_t kInfinity = 0x7C00;  // F16

// The least F16 that is not below `value` >= 0: integers of a rounded-down scale would not fit.
uint16_t RoundUpToF16(float value) {
  const uint16_t half = F32ToF16(value);
  return F16ToF32(half) < value ? uint16_t(half + 1) : half;
}

// The integers of a group, and what they are multiplied with.
struct Group {
  uint16_t scale = 0, minimum = 0;  // F16
  int8_t q[kQuantizedInputs] = {};
};

// q = round(w / s).
Group RoundToInt8(const float* w, int count) {
  Group group;
  float largest = 0;
  for (int i = 0; i < count; ++i) largest = std::max(largest, std::fabs(w[i]));
  group.scale = RoundUpToF16(largest / 127);
  const float inverse = group.scale == 0 ? 0 : 1 / F16ToF32(group.scale);
  for (int i = 0; i < count; ++i) {
    group.q[i] = int8_t(std::clamp(std::nearbyint(w[i] * inverse), -127.0f, 127.0f));
  }
  return group;
}

// q = round((w + m) / s), 0 .. 15.
Group RoundToInt4(const float* w, int count) {
  Group group;
  const auto [low, high] = std::minmax_element(w, w + count);
  group.minimum = F32ToF16(-*low);
  const float minimum = F16ToF32(group.minimum);
  group.scale = RoundUpToF16(std::max(*high + minimum, 0.0f) / 15);
  const float inverse = group.scale == 0 ? 0 : 1 / F16ToF32(group.scale);
  for (int i = 0; i < count; ++i) {
    group.q[i] = int8_t(std::clamp(std::nearbyint((w[i] + minimum) * inverse), 0.0f, 15.0f));
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
  if (type == WeightType::kInt4) std::memcpy(block + kInt4Minima + lane * 2, &group.minimum, 2);
  for (int i = 0; i < kQuantizedInputs; ++i) {
    uint8_t* const at = block + ValueAt(type, column, i);
    const auto bits = static_cast<uint8_t>(group.q[i]);
    if (type == WeightType::kInt8) {
      *at = bits;
    } else {
      *at = i < 16 ? uint8_t((*at & 0xF0u) | bits) : uint8_t((*at & 0x0Fu) | (bits << 4));
    }
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
      const int first = g * kQuantizedInputs, count = std::min(k - first, kQuantizedInputs);
      const Group group = type == WeightType::kInt8 ? RoundToInt8(in + first, count)
                                                    : RoundToInt4(in + first, count);
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
