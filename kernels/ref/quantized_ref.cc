// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/half.h"
#include "kernels/quantized.h"

namespace rivulet::kernels {
namespace {

float Half(const uint8_t* at) {
  uint16_t bits = 0;
  std::memcpy(&bits, at, 2);
  return F16ToF32(bits);
}

// Integer `i` of a column's group.
int Integer(WeightType type, const uint8_t* block, int lane, int i) {
  if (type == WeightType::kInt8) {
    return static_cast<int8_t>(block[kInt8Values + size_t(i / 4 * 128 + lane * 4 + i % 4)]);
  }
  const uint8_t both = block[kInt4Values + size_t(i % 16 / 4 * 128 + lane * 4 + i % 4)];
  return i < 16 ? both % 16 : both / 16;
}

float Output(const GemmArgs& args, int row, int column) {
  const WeightType type = args.w.type;
  const QuantizedRowLayout layout(args.w.k);
  const uint8_t* const x =
      static_cast<const uint8_t*>(args.quantized_x) + size_t(row) * layout.bytes;
  const int lane = column % kPanelColumns;
  float y = args.bias[column];
  for (int g = 0; g < layout.groups; ++g) {
    const uint8_t* const block =
        static_cast<const uint8_t*>(args.w.panels) +
        size_t(column / kPanelColumns * layout.groups + g) * QuantizedBlockBytes(type);
    QuantizedScale scale;
    std::memcpy(&scale, x + layout.scales + size_t(g) * sizeof(scale), sizeof(scale));
    int sum = 0;
    for (int i = 0; i < kQuantizedInputs; ++i) {
      sum +=
          Integer(type, block, lane, i) * static_cast<int8_t>(x[size_t(g * kQuantizedInputs + i)]);
    }
    y = std::fma(float(sum), Half(block + kBlockScales + lane * 2) * scale.scale, y);
    if (type == WeightType::kInt4) {
      y = std::fma(Half(block + kInt4Minima + lane * 2), scale.offset, y);
    }
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
      QuantizedScale scale = {0, 0, 0};
      int p[kQuantizedInputs] = {}, sum = 0;
      if (!finite) {
        scale.scale = std::nanf("");
      } else if (largest >= 0x1p-100f) {
        scale.scale = largest / 127;
        for (int i = 0; i < count; ++i) p[i] = int(std::nearbyint(x[i] * (127 / largest)));
      }
      for (int i = 0; i < kQuantizedInputs; ++i) {
        sum += p[i];
        row[first + i] = uint8_t(int8_t(p[i]));
        const int place = i / 4 * 4 + (i % 4 == 1 ? 2 : i % 4 == 2 ? 1 : i % 4);
        const auto wide = int16_t(p[i]);
        std::memcpy(row + layout.pairs + size_t(first + place) * 2, &wide, 2);
      }
      scale.offset = -(scale.scale * float(sum));
      scale.unsigned_zero = -128 * sum;
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
      args.y[at] = y;
    }
  }
}

}  // namespace rivulet::kernels
