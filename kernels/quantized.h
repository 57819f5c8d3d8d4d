// SPDX-License-Identifier: Apache-2.0
// Matrix products with weights of 8 or 4 bits and activations of 8 bits.
//
// Inputs are taken in groups of 32. Of a group g of output column c and of row r:
//
//   int8   W[c][k] = s[c][g] q[c][k]             q in -127 .. 127, s in F16
//   int4   W[c][k] = s[c][g] q[c][k] - m[c][g]   q in 0 .. 15, s and m in F16
//   rows   x[r][k] ~ t[r][g] p[r][k]             p in -127 .. 127, t = max|x| / 127 in float32
//
//   y[r][c] starts at the bias; for g in ascending order
//     y = fma(float(sum_k q p), s * t, y), and with int4 then y = fma(m, -(t * float(sum_k p)), y)
//
// The sums of a group are exact integers and every rounding is written above, so a row's bits
// depend on its x and the weights alone: not on other rows, threads, or the instruction set (all
// that fuse multiply-adds agree). Rounding to integers is to nearest even. A last group of fewer
// inputs is filled up with zeros of x.
//
// Packed weights are [panel][group] blocks (kernels/gemm.h) of 32 columns:
//   int8   s [32] F16 | q [8][32][4] int8: inputs 4 i .. 4 i + 3 of a column are one word
//   int4   s [32] F16 | m [32] F16 | [4][32][4] bytes: word i has inputs 4 i .. in its low halves,
//          inputs 16 + 4 i .. in the high ones
// Tested by: tests/parity/quantized_test.cc
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gemm.h"

namespace rivulet::kernels {

inline constexpr int kQuantizedInputs = 32;  // of a group
constexpr int QuantizedGroups(int k) { return (k + kQuantizedInputs - 1) / kQuantizedInputs; }

// Where a block's parts begin, in bytes.
inline constexpr size_t kBlockScales = 0;
inline constexpr size_t kInt8Values = kPanelColumns * 2;
inline constexpr size_t kInt4Minima = kPanelColumns * 2;
inline constexpr size_t kInt4Values = kPanelColumns * 4;
constexpr size_t QuantizedBlockBytes(WeightType type) {
  return type == WeightType::kInt8 ? kInt8Values + kPanelColumns * kQuantizedInputs
                                   : kInt4Values + kPanelColumns * kQuantizedInputs / 2;
}

// Of a row and group.
struct QuantizedScale {
  float scale = 0;            // t
  float offset = 0;           // -(t * float(sum of p))
  int32_t unsigned_zero = 0;  // -128 * sum of p: corrects weights that are raised by 128
};

// A quantized row: p [groups * 32] int8; then of each four p0 p1 p2 p3 the pairs p0 p2, p1 p3 as
// int16; then QuantizedScale [groups].
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
// A group with a value that is not finite has scale NaN and zeros; one whose values are all below
// 2^-100 has scale 0. Thread: any; disjoint rows may be quantized at once.
void QuantizeRowsCpu(const QuantizeRowsArgs& args);
void QuantizeRowsRef(const QuantizeRowsArgs& args);  // tests only

// GemmCpu for weights of 8 and 4 bits.
void QuantizedGemmCpu(const GemmArgs& args);
void QuantizedGemmRef(const GemmArgs& args);  // the same bits, plainly; tests only

// PackWeights and UnpackColumn of gemm.h for these types.
[[nodiscard]] bool PackQuantized(WeightType type, const float* w, int n, int k, int column_begin,
                                 void* panels);
void UnpackQuantized(const PackedMatrix& w, int column, float* out);

}  // namespace rivulet::kernels
