// SPDX-License-Identifier: Apache-2.0
// Matrix products with integer weights of few bits and activations of 8 bits.
//
// Inputs are taken in groups of 32. Of a group g of output column c and of row r:
//
//   weights  W[c][k] = s[c][g] q[c][k] - m[c][g]
//            kInt8   q in -127 .. 127, s in F16, no m
//            kInt4   q in 0 .. 15, s and m in F16
//            kQ4K    q in 0 .. 15, s and m in float32; holds GGUF's Q4_K
//            kQ5K    q in 0 .. 31, s and m in float32; Q5_K
//            kQ6K    q in -32 .. 31, an s in float32 for each half of a group, no m; Q6_K
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
// Packed weights are [panel][group] blocks (kernels/gemm.h) of 32 columns: s [32], or [2][32] of
// halves; m [32] where there is one; then q
//   of 8 bits  [8][32][4] int8: inputs 4 i .. 4 i + 3 of a column are one word
//   of 4 bits  [4][32][4] bytes: word i has inputs 4 i .. in its low halves, inputs 16 + 4 i .. in
//              the high ones
// Tested by: tests/parity/quantized_test.cc
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gemm.h"

namespace rivulet::kernels {

inline constexpr int kQuantizedInputs = 32;  // of a group
constexpr int QuantizedGroups(int k) { return (k + kQuantizedInputs - 1) / kQuantizedInputs; }

struct QuantizedFormat {
  int bits;         // of q: 8 or 4
  int halves;       // scales of a group
  int scale_bytes;  // of s and m: 2 or 4
  bool minimum;     // whether there is an m

  // Where m and q begin in a block, in bytes; s begins at 0.
  constexpr size_t minima() const { return size_t(kPanelColumns * halves * scale_bytes); }
  constexpr size_t values() const {
    return minima() + size_t(minimum ? kPanelColumns * scale_bytes : 0);
  }
  constexpr size_t bytes() const {
    return values() + size_t(kPanelColumns * kQuantizedInputs * bits / 8);
  }
};
// REQUIRES: IsQuantized(type).
constexpr QuantizedFormat FormatOf(WeightType type) {
  switch (type) {
    case WeightType::kInt4:
      return {4, 1, 2, true};
    case WeightType::kQ4K:
      return {4, 1, 4, true};
    case WeightType::kQ5K:
      return {8, 1, 4, true};
    case WeightType::kQ6K:
      return {8, 2, 4, false};
    default:
      return {8, 1, 2, false};
  }
}

// The scale of one group of one row.
struct QuantizedScale {
  float scale = 0;   // t
  float offset = 0;  // -(t * float(sum of p))
  // -128 * sum of p, for each half: corrects weights that are raised by 128.
  int32_t raised[2] = {0, 0};
};

// A quantized row: p [groups * 32] int8; then, for every four p0 p1 p2 p3, the pairs p0 p2, p1 p3
// as int16; then QuantizedScale [groups].
struct QuantizedRowLayout {
  explicit constexpr QuantizedRowLayout(int k)
      : groups(QuantizedGroups(k)),
        pairs(size_t(groups) * kQuantizedInputs),
        scales(pairs * 3),
        bytes((scales + size_t(groups) * sizeof(QuantizedScale) + 63) / 64 * 64) {}
  int groups;
  size_t pairs, scales, bytes;  // offsets of the parts, and of the next row
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

// GemmCpu for weights of 8 and 4 bits.
void QuantizedGemmCpu(const GemmArgs& args);
void QuantizedGemmRef(const GemmArgs& args);  // the same bits, plainly; tests only

// One group of a column.
struct QuantizedGroup {
  float scale[2] = {0, 0};           // s of inputs 0 .. 15 and 16 .. 31
  float minimum = 0;                 // m
  uint8_t q[kQuantizedInputs] = {};  // int8_t, as bytes
};
// Writes group `g` of a column. REQUIRES: the values fit the type, exactly (s and m where F16).
void PackGroup(WeightType type, const QuantizedGroup& group, int k, int column, int g,
               void* panels);
QuantizedGroup UnpackGroup(const PackedMatrix& w, int column, int g);
// W of a group, as float32.
void UnpackWeights(const QuantizedGroup& group, float (&out)[kQuantizedInputs]);

// The nearest group of kInt8 or kInt4 to 32 weights: s is max|w| / 127, or the range / 15, rounded
// up to F16. False where that is infinite.
[[nodiscard]] bool RoundToGroup(WeightType type, const float* w, QuantizedGroup* group);

// PackWeights (of kInt8 and kInt4) and UnpackColumn of gemm.h.
[[nodiscard]] bool PackQuantized(WeightType type, const float* w, int n, int k, int column_begin,
                                 void* panels);
void UnpackQuantized(const PackedMatrix& w, int column, float* out);

}  // namespace rivulet::kernels
