// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/quantized.h"

namespace rivulet::kernels {
namespace {

float Output(const GemmArgs& args, int row, int column) {
  const QuantizedFormat format = FormatOf(args.w.type);
  const QuantizedRowLayout layout(args.w.k);
  const uint8_t* const x =
      static_cast<const uint8_t*>(args.quantized_x) + size_t(row) * layout.bytes;
  float y = args.bias[column];
  for (int g = 0; g < layout.groups; ++g) {
    const QuantizedGroup group = UnpackGroup(args.w, column, g);
    QuantizedScale scale;
    std::memcpy(&scale, x + layout.scales + size_t(g) * sizeof(scale), sizeof(scale));
    int sums[2] = {0, 0};
    for (int i = 0; i < kQuantizedInputs; ++i) {
      sums[i / (kQuantizedInputs / format.halves)] +=
          static_cast<int8_t>(group.q[i]) *
          static_cast<int8_t>(x[size_t(g * kQuantizedInputs + i)]);
    }
    for (int half = 0; half < format.halves; ++half) {
      y = std::fma(float(sums[half]), group.Scale(half) * scale.scale, y);
    }
    if (format.minimum) y = std::fma(group.Minimum(), scale.offset, y);
  }
  return y;
}

}  // namespace

void QuantizeRowsRef(const QuantizeRowsArgs& args) {
  const QuantizedRowLayout layout(args.k);
  for (int r = 0; r < args.rows; ++r) {
    uint8_t* const row = static_cast<uint8_t*>(args.y) + size_t(r) * layout.bytes;
    std::memset(row, 0, layout.bytes);
    for (int g = 0; g < layout.groups; ++g) {
      const int first = g * kQuantizedInputs;
      const int count = std::min(args.k - first, kQuantizedInputs);
      const float* const x = args.x + size_t(r) * size_t(args.ldx) + first;
      float largest = 0;
      bool finite = true;
      for (int i = 0; i < count; ++i) {
        largest = std::max(largest, std::fabs(x[i]));
        finite = finite && std::isfinite(x[i]);
      }
      QuantizedScale scale;
      int p[kQuantizedInputs] = {}, halves[2] = {0, 0};
      if (!finite) {
        scale.scale = std::nanf("");
      } else if (largest >= 0x1p-100f) {
        scale.scale = largest / 127;
        for (int i = 0; i < count; ++i) p[i] = int(std::nearbyint(x[i] * (127 / largest)));
      }
      for (int i = 0; i < kQuantizedInputs; ++i) {
        halves[i / 16] += p[i];
        row[first + i] = uint8_t(int8_t(p[i]));
      }
      scale.offset = -(scale.scale * float(halves[0] + halves[1]));
      for (int half = 0; half < 2; ++half) scale.raised[half] = -128 * halves[half];
      std::memcpy(row + layout.scales + size_t(g) * sizeof(scale), &scale, sizeof(scale));
    }
  }
}

void QuantizedGemmRef(const GemmArgs& args) {
  const int column_end = std::min(args.panel_end * kPanelColumns, args.w.n);
  for (int r = 0; r < args.rows; ++r) {
    for (int c = args.panel_begin * kPanelColumns; c < column_end; ++c) {
      const size_t at = size_t(r) * size_t(args.ldy) + size_t(c);
      float y = Output(args, r, c);
      if (args.epilogue == Epilogue::kRelu) y = std::max(y, 0.0f);
      if (args.epilogue == Epilogue::kResidual) y += args.residual[at];
      if (args.epilogue == Epilogue::kGelu) {
        y = float(0.5 * double{y} * (1 + std::erf(double{y} / std::sqrt(2.0))));
      }
      if (args.epilogue == Epilogue::kScatter) {
        float& sum = args.y[size_t(args.scatter.rows[r]) * size_t(args.ldy) + size_t(c)];
        sum = std::fma(args.scatter.scales[r], y, sum);
        continue;
      }
      args.y[at] = y;
    }
  }
}

}  // namespace rivulet::kernels
