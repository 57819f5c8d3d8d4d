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

// To the nearest integer, ties to even; |x| < 2^22. Unlike std::nearbyint this is not a call, so
// the compiler vectorises the loops below.
float RoundToEven(float x) {
  constexpr float kShift = 0x1.8p23f;
  return (x + kShift) - kShift;
}

// The least and the greatest weight of a full group, by lanes so that the compiler vectorises it.
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

bool IsFinite(uint16_t half) { return (half & kInfinity) != kInfinity; }

void StoreScale(float value, int bytes, uint8_t* at) {
  if (bytes == 4) {
    std::memcpy(at, &value, 4);
    return;
  }
  const uint16_t half = F32ToF16(value);
  std::memcpy(at, &half, 2);
}

float LoadScale(int bytes, const uint8_t* at) {
  if (bytes == 2) {
    uint16_t half = 0;
    std::memcpy(&half, at, 2);
    return F16ToF32(half);
  }
  float value = 0;
  std::memcpy(&value, at, 4);
  return value;
}

// The offset in bytes of the block with group `g` of column `column`.
size_t BlockAt(WeightType type, int k, int column, int g) {
  const size_t panel = size_t(column / kPanelColumns);
  return (panel * size_t(QuantizedGroups(k)) + size_t(g)) * FormatOf(type).bytes();
}

// Offsets of a column's scales in a block.
size_t ScaleAt(const QuantizedFormat& format, int column, int half) {
  return size_t((half * kPanelColumns + column % kPanelColumns) * format.scale_bytes);
}

}  // namespace

bool RoundToGroup(WeightType type, const float* w, QuantizedGroup* group) {
  const bool int4 = type == WeightType::kInt4;
  const auto [low, high] = Range(w);
  const uint16_t minimum = int4 ? F32ToF16(-low) : uint16_t{0};
  const float raise = F16ToF32(minimum);
  const float span = int4 ? std::max(high + raise, 0.0f) / 15 : std::max(-low, high) / 127;
  const uint16_t scale = RoundUpToF16(span);
  const float inverse = scale == 0 ? 0 : 1 / F16ToF32(scale);
  const float least = int4 ? 0 : -127, most = int4 ? 15 : 127;
  group->scale[0] = group->scale[1] = F16ToF32(scale);
  group->minimum = raise;
  if (!IsFinite(scale) || !IsFinite(minimum)) return false;
  for (int i = 0; i < kQuantizedInputs; ++i) {
    const float q = RoundToEven(std::clamp((w[i] + raise) * inverse, least, most));
    group->q[i] = static_cast<uint8_t>(static_cast<int>(q));
  }
  return true;
}

void PackGroup(WeightType type, const QuantizedGroup& group, int k, int column, int g,
               void* panels) {
  const QuantizedFormat format = FormatOf(type);
  uint8_t* const block = static_cast<uint8_t*>(panels) + BlockAt(type, k, column, g);
  for (int half = 0; half < format.halves; ++half) {
    StoreScale(group.scale[half], format.scale_bytes, block + ScaleAt(format, column, half));
  }
  if (format.minimum) {
    StoreScale(group.minimum, format.scale_bytes,
               block + format.minima() + ScaleAt(format, column, 0));
  }
  uint8_t bytes[kQuantizedInputs];
  std::copy_n(group.q, kQuantizedInputs, bytes);
  if (format.bits == 4) {
    for (int i = 0; i < 16; ++i) bytes[i] = uint8_t(bytes[i] | (bytes[i + 16] << 4));
  }
  uint8_t* const words = block + format.values() + size_t(column % kPanelColumns) * 4;
  for (int word = 0; word < format.bits; ++word) {
    std::memcpy(words + word * kPanelColumns * 4, bytes + word * 4, 4);
  }
}

QuantizedGroup UnpackGroup(const PackedMatrix& w, int column, int g) {
  const QuantizedFormat format = FormatOf(w.type);
  const uint8_t* const block =
      static_cast<const uint8_t*>(w.panels) + BlockAt(w.type, w.k, column, g);
  QuantizedGroup group;
  for (int half = 0; half < 2; ++half) {
    group.scale[half] = LoadScale(
        format.scale_bytes, block + ScaleAt(format, column, std::min(half, format.halves - 1)));
  }
  if (format.minimum) {
    group.minimum =
        LoadScale(format.scale_bytes, block + format.minima() + ScaleAt(format, column, 0));
  }
  const uint8_t* const words = block + format.values() + size_t(column % kPanelColumns) * 4;
  for (int word = 0; word < format.bits; ++word) {
    std::memcpy(group.q + word * 4, words + word * kPanelColumns * 4, 4);
  }
  for (int i = 0; format.bits == 4 && i < 16; ++i) {
    group.q[i + 16] = group.q[i] >> 4;
    group.q[i] &= 15;
  }
  return group;
}

bool PackQuantized(WeightType type, const float* w, int n, int k, int column_begin, void* panels) {
  bool finite = true;
  for (int row = 0; row < n; ++row) {
    const float* const in = w + size_t(row) * size_t(k);
    for (int g = 0; g < QuantizedGroups(k); ++g) {
      const float* whole = in + g * kQuantizedInputs;
      float filled[kQuantizedInputs];
      const int left = k - g * kQuantizedInputs;
      if (left < kQuantizedInputs) {  // pad with the last weight, which widens no range
        std::copy_n(whole, left, filled);
        std::fill_n(filled + left, kQuantizedInputs - left, whole[left - 1]);
        whole = filled;
      }
      QuantizedGroup group;
      finite = RoundToGroup(type, whole, &group) && finite;
      PackGroup(type, group, k, column_begin + row, g, panels);
    }
  }
  return finite;
}

void UnpackWeights(const QuantizedGroup& group, float (&out)[kQuantizedInputs]) {
  for (int j = 0; j < kQuantizedInputs; ++j) {
    const auto q = float(static_cast<int8_t>(group.q[j]));  // unsigned q are below 32
    out[j] = std::fma(group.scale[j / 16], q, -group.minimum);
  }
}

void UnpackQuantized(const PackedMatrix& w, int column, float* out) {
  for (int i = 0; i < w.k; i += kQuantizedInputs) {
    float group[kQuantizedInputs];
    UnpackWeights(UnpackGroup(w, column, i / kQuantizedInputs), group);
    std::copy_n(group, std::min(w.k - i, kQuantizedInputs), out + i);
  }
}

}  // namespace rivulet::kernels
