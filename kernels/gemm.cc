// SPDX-License-Identifier: Apache-2.0
// Packing: the same for every implementation.
#include "kernels/gemm.h"

#include <cmath>
#include <cstring>

#include "kernels/half.h"
#include "kernels/quantized.h"

namespace rivulet::kernels {

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
