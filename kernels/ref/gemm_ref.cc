// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/gemm.h"
#include "kernels/half.h"

namespace rivulet::kernels {
namespace {

double Weight(const PackedMatrix& w, int k, int column) {
  const size_t at = size_t(column / kPanelColumns) * size_t(w.k) * kPanelColumns +
                    size_t(k) * kPanelColumns + size_t(column % kPanelColumns);
  switch (w.type) {
    case WeightType::kF32:
      return double{static_cast<const float*>(w.panels)[at]};
    case WeightType::kF16:
      return double{F16ToF32(static_cast<const uint16_t*>(w.panels)[at])};
    case WeightType::kBF16:
      return double{Bf16ToF32(static_cast<const uint16_t*>(w.panels)[at])};
  }
  return 0;
}

}  // namespace

void GemmRef(const GemmArgs& args) {
  const int column_end = std::min(args.panel_end * kPanelColumns, args.w.n);
  for (int r = 0; r < args.rows; ++r) {
    for (int c = args.panel_begin * kPanelColumns; c < column_end; ++c) {
      double sum = double{args.bias[c]};
      for (int k = 0; k < args.w.k; ++k) {
        sum += double{args.x[size_t(r) * size_t(args.ldx) + size_t(k)]} * Weight(args.w, k, c);
      }
      const size_t at = size_t(r) * size_t(args.ldy) + size_t(c);
      switch (args.epilogue) {
        case Epilogue::kNone:
          break;
        case Epilogue::kRelu:
          sum = std::max(sum, 0.0);
          break;
        case Epilogue::kGelu:
          sum = 0.5 * sum * (1 + std::erf(sum / std::sqrt(2.0)));
          break;
        case Epilogue::kResidual:
          sum += double{args.residual[at]};
          break;
      }
      args.y[at] = static_cast<float>(sum);
    }
  }
}

}  // namespace rivulet::kernels
