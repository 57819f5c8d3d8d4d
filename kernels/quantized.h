// SPDX-License-Identifier: Apache-2.0
// Matrix products with integer weights of few bits and activations of 8 bits.
//
// Inputs are taken in groups of 32. Of a group g of output column c and of row r:
//
//   weights  W[c][k] = s[c][g] q[c][k] - m[c][g]
//            kInt8   q in -128 .. 127, s in F16, no m; holds GGUF's Q8_0
//            kInt4   q in 0 .. 15, s and m in F16; Q4_0 and Q4_1
//            kInt5   q in 0 .. 31, s and m in F16; Q5_1
//            kInt5Signed  q in -16 .. 15, s in F16, no m; Q5_0
//            kIQ4NL  q one of kTableValues, s in F16, no m; IQ4_NL
//            and in blocks of 8 groups, with d and e in F16 for each block:
//            kQ4K    q in 0 .. 15, s = d u, m = e v, u and v in 0 .. 63; Q4_K
//            kQ5K    q in 0 .. 31, as kQ4K; Q5_K
//            kQ6K    q in -32 .. 31, s = d u, u in -128 .. 127 for each half of a group, no m;
//                    Q6_K and Q3_K
//            kIQ4XS  q one of kTableValues, s = d u, u in -128 .. 127, no m; IQ4_XS
//            (d u and e v are exact in float32)
//   rows     x[r][k] ~ t[r][g] p[r][k], p in -127 .. 127, t = max|x| / 127 in float32
//
//   y[r][c] starts at the bias; for g in ascending order
//     y = fma(float(sum_k q p), s * t, y), with kQ6K once for each half,
//     then with an m y = fma(m, -(t * float(sum_k p)), y)
//
// The sums of a group are exact integers and every rounding is written above, so a row's bits
// depend on its x and the weights alone: not on other rows, threads, or the instruction set (all
// that fuse multiply-adds agree). Rounding to integers is to nearest even. A last group of fewer
// inputs is filled up with zeros of x.
//
// Packed weights are [panel][block] (kernels/gemm.h), a block for 32 columns and one group, or 8
// groups (k is a multiple of 256):
//   F16 [32] s, or d; F16 [32] m, or e, where there is an m
//   of 8 groups without m: int8 [groups][halves][32] u; with m: [12][32] bytes, for j in 0 .. 3
//     byte j      u of group j, above it the upper 2 bits of u of group j + 4
//     byte 4 + j  v of group j, above it the upper 2 bits of v of group j + 4
//     byte 8 + j  the lower 4 bits of u of group j + 4, above them those of v
//   q of each group
//     of 8 bits  [8][32][4] int8: inputs 4 i .. 4 i + 3 of a column are word i
//     of 4 bits  [4][32][4] bytes: word i has inputs 4 i .. in its low halves, inputs 16 + 4 i ..
//                in the high ones; q of a table: its index
//     of 5 bits  q, without m q + 16: the low 4 bits likewise; then [32][4] bytes: bit i of a byte
//                is the fifth bit of its input of word i
//     of 6 bits  (q + 32) [halves][3][32][4] bytes: word i has inputs 4 i .. of its half in its low
//                6 bits, and in the upper ones bits 2 i and 2 i + 1 of inputs 12 ..
// Tested by: tests/parity/quantized_test.cc
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gemm.h"

namespace rivulet::kernels {

inline constexpr int kQuantizedInputs = 32;  // of a group
constexpr int QuantizedGroups(int k) { return (k + kQuantizedInputs - 1) / kQuantizedInputs; }

inline constexpr int kMostGroups = 8;  // of a block
struct QuantizedFormat {
  int bits;            // of q: 8, 6, 5 or 4
  int groups;          // of a block: 1, or 8 whose scales are products of d
  int halves;          // scales of a group
  bool minimum;        // whether there is an m
  bool table = false;  // q is an index of kTableValues

  // Offsets in bytes: of m or e, of u (and v), of q; s or d begins at 0.
  constexpr size_t minima() const { return size_t{kPanelColumns} * 2; }
  constexpr size_t units() const { return minima() * (minimum ? 2 : 1); }
  constexpr size_t values() const {
    return units() + size_t(groups == 1 ? 0 : minimum ? 12 : groups * halves) * kPanelColumns;
  }
  constexpr size_t group_bytes() const {  // of q
    return size_t(kPanelColumns * kQuantizedInputs * bits / 8);
  }
  constexpr size_t bytes() const { return values() + size_t(groups) * group_bytes(); }
  constexpr int inputs() const { return groups * kQuantizedInputs; }
};
// REQUIRES: IsQuantized(type).
constexpr QuantizedFormat FormatOf(WeightType type) {
  switch (type) {
    case WeightType::kInt4:
      return {4, 1, 1, true};
    case WeightType::kInt5:
      return {5, 1, 1, true};
    case WeightType::kInt5Signed:
      return {5, 1, 1, false};
    case WeightType::kQ4K:
      return {4, 8, 1, true};
    case WeightType::kQ5K:
      return {5, 8, 1, true};
    case WeightType::kQ6K:
      return {6, 8, 2, false};
    case WeightType::kIQ4NL:
      return {4, 1, 1, false, true};
    case WeightType::kIQ4XS:
      return {4, 8, 1, false, true};
    default:
      return {8, 1, 1, false};
  }
}

// Of a column. A last block of one group may have fewer inputs.
constexpr int QuantizedBlocks(WeightType type, int k) {
  return QuantizedGroups(k) / FormatOf(type).groups;
}

inline constexpr int8_t kTableValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                            1,    13,   25,  38,  53,  69,  89,  113};

// q of input `i` of a group of a column: `values` are the group's.
constexpr int IntegerAt(const QuantizedFormat& format, const uint8_t* values, int column, int i) {
  const auto byte = [&](int word) {
    return int{values[(word * kPanelColumns + column) * 4 + i % 4]};
  };
  const int word = i / 4, half = word / 4;
  if (format.bits == 8) return static_cast<int8_t>(byte(word));
  if (format.bits == 6) {
    if (word % 4 < 3) return (byte(3 * half + word % 4) & 63) - 32;
    return (byte(3 * half) >> 6 | byte(3 * half + 1) >> 6 << 2 | byte(3 * half + 2) >> 6 << 4) - 32;
  }
  const int low = half == 0 ? byte(word) & 15 : byte(word - 4) >> 4;
  if (format.bits == 5) return (low | (byte(4) >> word & 1) << 4) - (format.minimum ? 0 : 16);
  return format.table ? kTableValues[low] : low;
}

// The scale of one group of one row.
struct QuantizedScale {
  float scale = 0;   // t
  float offset = 0;  // -(t * float(sum of p))
  // -128 * sum of p, for each half: corrects weights that are raised by 128.
  int32_t raised[2] = {0, 0};
};

// A quantized row: p [groups * 32] int8, then QuantizedScale [groups].
struct QuantizedRowLayout {
  explicit constexpr QuantizedRowLayout(int k)
      : groups(QuantizedGroups(k)),
        scales(size_t(groups) * kQuantizedInputs),
        bytes((scales + size_t(groups) * sizeof(QuantizedScale) + 63) / 64 * 64) {}
  int groups;
  size_t scales, bytes;  // offsets of the scales, and of the next row
};

struct QuantizeRowsArgs {
  const float* x = nullptr;  // [rows, ldx]
  void* y = nullptr;         // [rows] of QuantizedRowLayout(k), 64-byte aligned
  int rows = 0, ldx = 0, k = 0;
};
// A group with a value that is not finite gets scale NaN and zeros; a group of values below 2^-100
// gets scale 0. Thread: any; disjoint rows may be quantized at once.
void QuantizeRowsCpu(const QuantizeRowsArgs& args);
void QuantizeRowsRef(const QuantizeRowsArgs& args);  // tests only

// GemmCpu for weights of 8 to 4 bits.
void QuantizedGemmCpu(const GemmArgs& args);
void QuantizedGemmRef(const GemmArgs& args);  // the same bits, plainly; tests only

// One group of a column: s = d u for each half, m = e v.
struct QuantizedGroup {
  float d = 0, e = 0;
  int8_t u[2] = {1, 1};
  uint8_t v = 1;
  uint8_t q[kQuantizedInputs] = {};  // int8_t, as bytes

  float Scale(int half) const { return d * float(u[half]); }
  float Minimum() const { return e * float(v); }
  bool operator==(const QuantizedGroup&) const = default;
};
// Writes group `g` of a column. REQUIRES: the values fit the type, exactly (d and e are F16); u and
// v are 1 where a block is one group, else the groups of a block have the d and e of its first.
void PackGroup(WeightType type, const QuantizedGroup& group, int k, int column, int g,
               void* panels);
QuantizedGroup UnpackGroup(const PackedMatrix& w, int column, int g);
// W of a group, as float32.
void UnpackWeights(const QuantizedGroup& group, float (&out)[kQuantizedInputs]);

// The nearest block of kInt8, kInt4 or kQ4K to as many weights, its groups. kInt8 and kInt4: s is
// max|w| / 127, or the range / 15, rounded up to F16. False where a number of F16 is infinite.
[[nodiscard]] bool RoundToBlock(WeightType type, const float* w, QuantizedGroup* groups);

// PackWeights (of kInt8, kInt4 and kQ4K) and UnpackColumn of gemm.h.
[[nodiscard]] bool PackQuantized(WeightType type, const float* w, int n, int k, int column_begin,
                                 void* panels);
void UnpackQuantized(const PackedMatrix& w, int column, float* out);

}  // namespace rivulet::kernels
