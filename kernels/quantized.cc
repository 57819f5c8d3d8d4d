// SPDX-License-Identifier: Apache-2.0
// Packing of weights of 8 to 4 bits: rounding at load, the same for every implementation.
#include "kernels/quantized.h"

#include <emmintrin.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
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

void StoreHalf(float value, uint8_t* at) {
  const uint16_t half = F32ToF16(value);
  std::memcpy(at, &half, 2);
}

float LoadHalf(const uint8_t* at) {
  uint16_t half = 0;
  std::memcpy(&half, at, 2);
  return F16ToF32(half);
}

// Where the block with group `g` of column `column` begins, in bytes.
size_t BlockAt(WeightType type, int k, int column, int g) {
  const size_t panel = size_t(column / kPanelColumns);
  const int block = g / FormatOf(type).groups;
  return (panel * size_t(QuantizedBlocks(type, k)) + size_t(block)) * FormatOf(type).bytes();
}

// u and v of group `g` of a block with minima; `units`: those of the column, a row apart.
void StoreSixBits(int g, const QuantizedGroup& group, uint8_t* units) {
  const auto at = [&](int row) -> uint8_t& { return units[(row + g % 4) * kPanelColumns]; };
  const auto u = uint8_t(group.u[0]), v = group.v;
  if (g < 4) {
    at(0) = uint8_t((at(0) & 0xC0) | u);
    at(4) = uint8_t((at(4) & 0xC0) | v);
  } else {
    at(0) = uint8_t((at(0) & 63) | u >> 4 << 6);
    at(4) = uint8_t((at(4) & 63) | v >> 4 << 6);
    at(8) = uint8_t((u & 15) | v << 4);
  }
}

void LoadSixBits(int g, const uint8_t* units, QuantizedGroup* group) {
  const auto at = [&](int row) { return units[(row + g % 4) * kPanelColumns]; };
  group->u[0] = int8_t(g < 4 ? at(0) & 63 : (at(8) & 15) | at(0) >> 6 << 4);
  group->v = uint8_t(g < 4 ? at(4) & 63 : at(8) >> 4 | at(4) >> 6 << 4);
}

// The code of each value of kTableValues, by its byte.
std::array<uint8_t, 256> TableCodes() {
  std::array<uint8_t, 256> codes = {};
  for (uint8_t code = 0; code < 16; ++code) codes[uint8_t(kTableValues[code])] = code;
  return codes;
}

// The q of a column; `values` are the group's. A word has four inputs, one in each byte.
void StoreIntegers(const QuantizedFormat& format, const uint8_t* q, int column, uint8_t* values) {
  static const std::array<uint8_t, 256> kCodes = TableCodes();
  constexpr uint32_t kLow4 = 0x0F0F0F0F, kLow6 = 0x3F3F3F3F, kRaise6 = 0x20202020,
                     kLow5 = 0x1F1F1F1F, kRaise5 = 0x10101010;
  uint8_t codes[kQuantizedInputs];
  for (int i = 0; format.table && i < kQuantizedInputs; ++i) codes[i] = kCodes[q[i]];
  uint32_t words[8];
  std::memcpy(words, format.table ? codes : q, sizeof(words));
  const auto store = [&](int word, uint32_t bits) {
    std::memcpy(values + (word * kPanelColumns + column) * 4, &bits, 4);
  };
  if (format.bits == 8) {
    for (int i = 0; i < 8; ++i) store(i, words[i]);
  } else if (format.bits == 6) {
    for (uint32_t& word : words) word = (word & kLow6) ^ kRaise6;  // + 32 in each byte
    for (int i = 0; i < 6; ++i) {
      const uint32_t* const half = words + i / 3 * 4;
      store(i, half[i % 3] | (half[3] >> i % 3 * 2 & 0x03030303) << 6);
    }
  } else {
    uint32_t fifth = 0;
    for (int i = 0; format.bits == 5 && !format.minimum && i < 8; ++i) {
      words[i] = (words[i] & kLow5) ^ kRaise5;  // + 16
    }
    for (int i = 0; i < 8; ++i) fifth |= (words[i] >> 4 & 0x01010101) << i;
    for (int i = 0; i < 4; ++i) store(i, (words[i] & kLow4) | (words[i + 4] & kLow4) << 4);
    if (format.bits == 5) store(4, fifth);
  }
}

// --- Rounding to kQ4K

// SSE2, as the compiler does not vectorise loops of clamped and summed floats. The order of a sum
// is the same on every machine.
using Four = __m128;

float Sum(Four v) {
  float lane[4];
  _mm_storeu_ps(lane, v);
  return (lane[0] + lane[1]) + (lane[2] + lane[3]);
}

// q = (w + raise) inverse, rounded into 0 .. 15.
Four Nearest(Four w, Four raise, Four inverse) {
  const Four shift = _mm_set1_ps(0x1.8p23f), q = _mm_mul_ps(_mm_add_ps(w, raise), inverse);
  const Four in_range = _mm_min_ps(_mm_max_ps(q, _mm_setzero_ps()), _mm_set1_ps(15));
  return _mm_sub_ps(_mm_add_ps(in_range, shift), shift);
}

// s q - m that is nearest to a group of weights, with m >= 0.
struct Fit {
  float s = 0, m = 0, gain = -1;  // gain: by how much it is nearer than 0, in squares
};

// The least squares for the integers of one range, which begins at -raise. `x`: the sum of w.
Fit FitOf(const float* w, float x, float raise, float inverse) {
  constexpr float kN = kQuantizedInputs;
  Four q_sum = _mm_setzero_ps(), qq_sum = q_sum, xq_sum = q_sum;
  for (int i = 0; i < kQuantizedInputs; i += 4) {
    const Four in = _mm_loadu_ps(w + i);
    const Four integer = Nearest(in, _mm_set1_ps(raise), _mm_set1_ps(inverse));
    q_sum = _mm_add_ps(q_sum, integer);
    qq_sum = _mm_add_ps(qq_sum, _mm_mul_ps(integer, integer));
    xq_sum = _mm_add_ps(xq_sum, _mm_mul_ps(integer, in));
  }
  const float q = Sum(q_sum), qq = Sum(qq_sum), xq = Sum(xq_sum);
  const float spread = kN * qq - q * q;
  Fit fit;
  if (spread > 0) {
    fit.s = (kN * xq - x * q) / spread;
    fit.m = (q * xq - qq * x) / spread;
  }
  if (!(spread > 0) || fit.m < 0) {
    fit.m = 0;
    fit.s = qq > 0 ? std::max(xq / qq, 0.0f) : 0;
  }
  fit.gain = fit.s * xq - fit.m * x;
  return fit;
}

// The best of several ranges, of which the shorter ones lose the ends.
Fit BestFit(const float* w) {
  auto [low, high] = Range(w);
  low = std::min(low, 0.0f);
  Fit best;
  if (!(high > low)) return best;
  if (!(high - low < 0x1p40f)) return {std::numeric_limits<float>::infinity()};  // far beyond F16
  Four sum = _mm_setzero_ps();
  for (int i = 0; i < kQuantizedInputs; i += 4) sum = _mm_add_ps(sum, _mm_loadu_ps(w + i));
  const float x = Sum(sum);
  for (const float steps : {14.5f, 15.0f, 15.5f, 16.0f, 16.5f}) {
    const Fit fit = FitOf(w, x, -low, steps / (high - low));
    if (fit.gain > best.gain) best = fit;
  }
  return best;
}

// Sets q of a group whose scales are set; returns the sum of squares of the differences.
float RoundWeights(const float* w, QuantizedGroup* group) {
  const float s = group->Scale(0), m = group->Minimum();
  const Four scale = _mm_set1_ps(s), inverse = _mm_set1_ps(s > 0 ? 1 / s : 0),
             raise = _mm_set1_ps(m);
  Four sum = _mm_setzero_ps();
  for (int i = 0; i < kQuantizedInputs; i += 4) {
    const Four in = _mm_loadu_ps(w + i), q = Nearest(in, raise, inverse);
    const Four error = _mm_sub_ps(_mm_add_ps(in, raise), _mm_mul_ps(scale, q));
    sum = _mm_add_ps(sum, _mm_mul_ps(error, error));
    const __m128i words = _mm_cvtps_epi32(q), halves = _mm_packs_epi32(words, words);
    const int32_t bytes = _mm_cvtsi128_si32(_mm_packus_epi16(halves, halves));
    std::memcpy(group->q + i, &bytes, 4);
  }
  return Sum(sum);
}

// Sets u, v and q of a group with d and e: the best of the four next to s / d and m / e.
void RoundGroup(const float* w, const Fit& fit, QuantizedGroup* group) {
  const auto units = [](float value, float of) {
    return of > 0 ? std::clamp(static_cast<int>(value / of), 0, 62) : 0;
  };
  const QuantizedGroup given = *group;
  float least = -1;
  for (int i = 0; i < 4; ++i) {
    QuantizedGroup tried = given;
    tried.u[0] = tried.u[1] = static_cast<int8_t>(units(fit.s, given.d) + i % 2);
    tried.v = static_cast<uint8_t>(units(fit.m, given.e) + i / 2);
    const float error = RoundWeights(w, &tried);
    if (least >= 0 && !(error < least)) continue;
    least = error;
    *group = tried;
  }
}

bool RoundToQ4K(const float* w, QuantizedGroup* groups) {
  constexpr int kGroups = FormatOf(WeightType::kQ4K).groups;
  Fit fits[kGroups];
  float most_s = 0, most_m = 0;
  for (int g = 0; g < kGroups; ++g) {
    fits[g] = BestFit(w + g * kQuantizedInputs);
    most_s = std::max(most_s, fits[g].s);
    most_m = std::max(most_m, fits[g].m);
  }
  const uint16_t d = RoundUpToF16(most_s / 63), e = RoundUpToF16(most_m / 63);
  const bool finite = IsFinite(d) && IsFinite(e);
  for (int g = 0; g < kGroups; ++g) {
    groups[g] = {F16ToF32(d), F16ToF32(e)};
    if (finite) RoundGroup(w + g * kQuantizedInputs, fits[g], &groups[g]);
  }
  return finite;
}

}  // namespace

bool RoundToBlock(WeightType type, const float* w, QuantizedGroup* groups) {
  if (type == WeightType::kQ4K) return RoundToQ4K(w, groups);
  const bool int4 = type == WeightType::kInt4;
  const auto [low, high] = Range(w);
  const uint16_t minimum = int4 ? F32ToF16(-low) : uint16_t{0};
  const float raise = F16ToF32(minimum);
  const float span = int4 ? std::max(high + raise, 0.0f) / 15 : std::max(-low, high) / 127;
  const uint16_t scale = RoundUpToF16(span);
  const float inverse = scale == 0 ? 0 : 1 / F16ToF32(scale);
  const float least = int4 ? 0 : -127, most = int4 ? 15 : 127;
  *groups = {F16ToF32(scale), raise};
  if (!IsFinite(scale) || !IsFinite(minimum)) return false;
  for (int i = 0; i < kQuantizedInputs; ++i) {
    const float q = RoundToEven(std::clamp((w[i] + raise) * inverse, least, most));
    groups->q[i] = static_cast<uint8_t>(static_cast<int>(q));
  }
  return true;
}

void PackGroup(WeightType type, const QuantizedGroup& group, int k, int column, int g,
               void* panels) {
  const QuantizedFormat format = FormatOf(type);
  uint8_t* const block = static_cast<uint8_t*>(panels) + BlockAt(type, k, column, g);
  const int c = column % kPanelColumns, in_block = g % format.groups;
  if (in_block == 0) {
    StoreHalf(group.d, block + c * 2);
    if (format.minimum) StoreHalf(group.e, block + format.minima() + c * 2);
  }
  uint8_t* const units = block + format.units() + c;
  if (format.groups > 1 && format.minimum) StoreSixBits(in_block, group, units);
  for (int half = 0; format.groups > 1 && !format.minimum && half < format.halves; ++half) {
    units[(in_block * format.halves + half) * kPanelColumns] = uint8_t(group.u[half]);
  }
  StoreIntegers(format, group.q, c,
                block + format.values() + size_t(in_block) * format.group_bytes());
}

QuantizedGroup UnpackGroup(const PackedMatrix& w, int column, int g) {
  const QuantizedFormat format = FormatOf(w.type);
  const uint8_t* const block =
      static_cast<const uint8_t*>(w.panels) + BlockAt(w.type, w.k, column, g);
  const int c = column % kPanelColumns, in_block = g % format.groups;
  QuantizedGroup group;
  group.d = LoadHalf(block + c * 2);
  if (format.minimum) group.e = LoadHalf(block + format.minima() + c * 2);
  const uint8_t* const units = block + format.units() + c;
  if (format.groups > 1 && format.minimum) LoadSixBits(in_block, units, &group);
  for (int half = 0; format.groups > 1 && !format.minimum && half < format.halves; ++half) {
    group.u[half] = int8_t(units[(in_block * format.halves + half) * kPanelColumns]);
  }
  if (format.halves == 1) group.u[1] = group.u[0];
  const uint8_t* const values = block + format.values() + size_t(in_block) * format.group_bytes();
  for (int i = 0; i < kQuantizedInputs; ++i) group.q[i] = uint8_t(IntegerAt(format, values, c, i));
  return group;
}

bool PackQuantized(WeightType type, const float* w, int n, int k, int column_begin, void* panels) {
  const int groups = FormatOf(type).groups, inputs = FormatOf(type).inputs();
  bool finite = true;
  for (int row = 0; row < n; ++row) {
    const float* const in = w + size_t(row) * size_t(k);
    for (int block = 0; block < QuantizedBlocks(type, k); ++block) {
      const float* whole = in + block * inputs;
      float filled[kQuantizedInputs];
      const int left = k - block * inputs;
      if (left < inputs) {  // pad with the last weight, which widens no range
        std::copy_n(whole, left, filled);
        std::fill_n(filled + left, kQuantizedInputs - left, whole[left - 1]);
        whole = filled;
      }
      QuantizedGroup rounded[kMostGroups];
      finite = RoundToBlock(type, whole, rounded) && finite;
      for (int g = 0; g < groups; ++g) {
        PackGroup(type, rounded[g], k, column_begin + row, block * groups + g, panels);
      }
    }
  }
  return finite;
}

void UnpackWeights(const QuantizedGroup& group, float (&out)[kQuantizedInputs]) {
  for (int j = 0; j < kQuantizedInputs; ++j) {
    const auto q = float(static_cast<int8_t>(group.q[j]));  // unsigned q are below 32
    out[j] = std::fma(group.Scale(j / 16), q, -group.Minimum());
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
