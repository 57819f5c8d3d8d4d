// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/gemm.h"

namespace rivulet::kernels {

void GemmRef(const GemmArgs& args) {
  const int column_end = std::min(args.panel_end * kPanelColumns, args.w.n);
  std::vector<float> w(static_cast<size_t>(args.w.k));
  for (int c = args.panel_begin * kPanelColumns; c < column_end; ++c) {
    UnpackColumn(args.w, c, w.data());
    for (int r = 0; r < args.rows; ++r) {
      double sum = double{args.bias[c]};
      for (int k = 0; k < args.w.k; ++k) {
        sum += double{args.x[size_t(r) * size_t(args.ldx) + size_t(k)]} * double{w[size_t(k)]};
      }
      size_t at = size_t(r) * size_t(args.ldy) + size_t(c);
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
        case Epilogue::kScatter:
          at = size_t(args.scatter.rows[r]) * size_t(args.ldy) + size_t(c);
          sum = double{args.y[at]} + double{args.scatter.scales[r]} * sum;
          break;
      }
      args.y[at] = static_cast<float>(sum);
    }
  }
}

}  // namespace rivulet::kernels
