// SPDX-License-Identifier: Apache-2.0
// Checks and packing: the same for every implementation.
#include "kernels/gemm.h"

#include <cmath>
#include <cstring>

#include "kernels/half.h"
#include "kernels/quantized.h"

namespace rivulet::kernels {

const char* CheckGemm(const GemmArgs& args) {
  if (args.w.panels == nullptr || args.bias == nullptr) return "weights and bias must be set";
  if (args.w.k < 1 || args.w.n < 1 || args.rows < 0) return "k, n >= 1 and rows >= 0";
  const bool quantized = IsQuantized(args.w.type);
  if (quantized && FormatOf(args.w.type).groups > 1 &&
      args.w.k % FormatOf(args.w.type).inputs() != 0)
    return "k is whole blocks of the type";
  const void* const x = quantized ? args.quantized_x : args.x;
  if (args.rows > 0 && (x == nullptr || args.y == nullptr)) return "x and y must be set";
  if (!quantized && args.ldx < args.w.k) return "ldx >= k";
  if (args.ldy < PaddedColumns(args.w.n)) return "ldy >= n rounded up to 32";
  if (args.epilogue == Epilogue::kResidual && args.residual == nullptr)
    return "residual must be set";
  if (args.epilogue == Epilogue::kScatter &&
      (args.scatter.rows == nullptr || args.scatter.scales == nullptr))
    return "scatter must be set";
  if (args.panel_begin < 0 || args.panel_end > NumPanels(args.w.n))
    return "panels within the matrix";
  return nullptr;
}

size_t PackedSize(WeightType type, int k, int n) {
  if (IsQuantized(type)) {
    return size_t(NumPanels(n)) * size_t(QuantizedBlocks(type, k)) * FormatOf(type).bytes();
  }
  return WeightBytes(type) * size_t(k) * size_t(PaddedColumns(n));
}

bool PackWeights(WeightType type, const float* w, int n, int k, int column_begin, void* panels) {
  if (IsQuantized(type)) return PackQuantized(type, w, n, k, column_begin, panels);
  bool finite = true;
  for (int i = 0; i < n; ++i) {
    const int column = column_begin + i;
    const size_t base =
        size_t(column / kPanelColumns) * size_t(k) * kPanelColumns + size_t(column % kPanelColumns);
    for (int j = 0; j < k; ++j) {
      const float value = w[size_t(i) * size_t(k) + size_t(j)];
      const size_t at = base + size_t(j) * kPanelColumns;
      switch (type) {
        case WeightType::kF32:
          static_cast<float*>(panels)[at] = value;
          break;
        case WeightType::kF16: {
          const uint16_t half = F32ToF16(value);
          finite = finite && (half & 0x7C00u) != 0x7C00u;
          static_cast<uint16_t*>(panels)[at] = half;
          break;
        }
        case WeightType::kBF16: {
          const uint16_t half = F32ToBf16(value);
          finite = finite && (half & 0x7F80u) != 0x7F80u;
          static_cast<uint16_t*>(panels)[at] = half;
          break;
        }
        default:
          break;  // quantized: above
      }
    }
  }
  return finite;
}

void UnpackColumn(const PackedMatrix& w, int column, float* out) {
  if (IsQuantized(w.type)) return UnpackQuantized(w, column, out);
  const size_t base =
      size_t(column / kPanelColumns) * size_t(w.k) * kPanelColumns + size_t(column % kPanelColumns);
  for (size_t j = 0; j < size_t(w.k); ++j) {
    const size_t at = base + j * kPanelColumns;
    switch (w.type) {
      case WeightType::kF32:
        out[j] = static_cast<const float*>(w.panels)[at];
        break;
      case WeightType::kF16:
        out[j] = F16ToF32(static_cast<const uint16_t*>(w.panels)[at]);
        break;
      case WeightType::kBF16:
        out[j] = Bf16ToF32(static_cast<const uint16_t*>(w.panels)[at]);
        break;
      default:
        break;  // quantized: above
    }
  }
}

}  // namespace rivulet::kernels
