// SPDX-License-Identifier: Apache-2.0
// Matrix product with packed weights: y = epilogue(x W^T + b).
//
//   y[r][c] = epilogue( b[c] + sum_k x[r][k] W[c][k] )
//   x [rows, k], W [n, k] as PyTorch stores it
//
// Weights are packed once in panels of 32 output columns, [panel][k][32], zero padded. Every output
// has one accumulator that starts at the bias and takes k in ascending order with fused
// multiply-adds, so a row's bits depend on nothing but its x and the weights: not on the number of
// rows, the row's place, the threads (they split panels), or the vector width. 16-bit weights are
// widened as they are used; the arithmetic is float32. Measured beside other libraries in
// deploy/BENCHMARKS.md. Tested by: tests/parity/gemm_test.cc
#pragma once

#include <cstddef>
#include <cstdint>

namespace rivulet::kernels {

inline constexpr int kPanelColumns = 32;
constexpr int NumPanels(int n) { return (n + kPanelColumns - 1) / kPanelColumns; }
// Width that activation buffers need so that a whole last panel can be stored: n rounded up to a
// panel.
constexpr int PaddedColumns(int n) { return NumPanels(n) * kPanelColumns; }

// kInt8 and later types: integers in groups with scales, multiplied with rows of 8 bits
// (kernels/quantized.h).
enum class WeightType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kInt8,
  kInt4,
  kInt5,
  kInt5Signed,
  kQ4K,
  kQ5K,
  kQ6K,
  kIQ4NL,
  kIQ4XS
};
constexpr bool IsQuantized(WeightType type) { return type >= WeightType::kInt8; }
// REQUIRES: not quantized.
constexpr size_t WeightBytes(WeightType type) { return type == WeightType::kF32 ? 4 : 2; }

enum class Epilogue : uint8_t {
  kNone,
  kRelu,
  kGelu,      // exact, with erf
  kResidual,  // adds residual[r][c]
  kScatter,   // of experts (kernels/experts.h), on the CPU: with i = scatter.rows[r],
              // y[i][c] = fma(scatter.scales[r], value, y[i][c])
};

// Borrowed packed weights. Memory: PackedSize() bytes, 64-byte aligned, owned by the caller.
struct PackedMatrix {
  WeightType type = WeightType::kF32;
  int k = 0, n = 0;
  const void* panels = nullptr;  // [NumPanels(n)][k][32]; quantized: blocks
};
size_t PackedSize(WeightType type, int k, int n);

// Packs rows of `w` [n, k] float32 into columns column_begin .. column_begin + n - 1 of a packed
// matrix of any width; call it several times to put several matrices side by side. `panels` must be
// zero at first. Rounds to nearest even; returns false if a finite weight becomes infinite in
// `type`.
[[nodiscard]] bool PackWeights(WeightType type, const float* w, int n, int k, int column_begin,
                               void* panels);

// Column `column` of a packed matrix as float32, [k]: a row of the matrix before packing.
void UnpackColumn(const PackedMatrix& w, int column, float* out);

// The inputs that are not 0 in every row, in ascending order. Borrowed.
struct NonzeroInputs {
  const int32_t* inputs = nullptr;  // [count]; null: all
  int count = 0;
};

// Row r of a product is added to row rows[r] of y, scaled. Borrowed; rows are distinct.
struct ScatterRows {
  const int32_t* rows = nullptr;
  const float* scales = nullptr;
};

struct GemmArgs {
  PackedMatrix w;
  const float* bias = nullptr;        // [PaddedColumns(n)], zero padded
  const float* x = nullptr;           // [rows, ldx], ldx >= k; unused with quantized weights
  const void* quantized_x = nullptr;  // with quantized weights: [rows] of QuantizedRowLayout(k)
  float* y = nullptr;  // [rows, ldy], ldy >= PaddedColumns(n); padding columns are written too
  const float* residual = nullptr;  // [rows, ldy] for kResidual; may be y
  ScatterRows scatter;              // [rows] for kScatter; y has any number of rows
  int rows = 0, ldx = 0, ldy = 0;
  Epilogue epilogue = Epilogue::kNone;
  int panel_begin = 0, panel_end = 0;  // the panels to compute, 0 .. NumPanels(n)
  NonzeroInputs nonzero;               // SparseGemmCpu alone
};

void GemmRef(const GemmArgs& args);  // double accumulation; tests only
// Thread: any; calls on disjoint panels or rows may run at once. Cost: 2 rows k n flop, one read of
// the panels from memory; blocks of 6 to 12 rows read them again from the caches. Stack: at most 82
// KiB.
void GemmCpu(const GemmArgs& args);

// GemmCpu that reads only the weights of the inputs `nonzero`: for few rows, where reading weights
// is the limit. The bits are the same: a product with 0 changes no sum but -0, which products reach
// only by underflow. REQUIRES: finite weights, not quantized; no bias is -0; at most
// kMostSparseRows.
inline constexpr int kMostSparseRows = 4;
void SparseGemmCpu(const GemmArgs& args);

// Lists the inputs of x [rows, ldx] that are not 0 in every row; `inputs` has space for k.
// Returns their number.
int FindNonzero(const float* x, int rows, int ldx, int k, int32_t* inputs);

}  // namespace rivulet::kernels
