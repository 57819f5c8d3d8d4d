// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>

#include "kernels/embed.h"

namespace rivulet::kernels {

void EmbedCpu(const EmbedArgs& args, int32_t token, float* y) {
  const float* e = args.tokens + size_t(token) * size_t(args.columns);
  int column = 0;
  for (; column < args.columns; ++column) {
    y[column] = args.positions && !args.concat ? e[column] + args.positions[column] : e[column];
  }
  if (args.positions && args.concat) {
    for (int i = 0; i < args.position_columns; ++i) y[column++] = args.positions[i];
  }
  while (column < args.ld) y[column++] = 0;
}

void SinusoidalPosition(int64_t p, int columns, float* out) {
  for (int c = 0; c < columns; ++c) {
    const double angle = double(p) * std::pow(10000.0, -double(c - c % 2) / double(columns));
    out[c] = float(c % 2 == 0 ? std::sin(angle) : std::cos(angle));
  }
}

}  // namespace rivulet::kernels
