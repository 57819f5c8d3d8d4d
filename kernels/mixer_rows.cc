// SPDX-License-Identifier: Apache-2.0
#include "kernels/mixer_rows.h"

#include <cmath>

namespace rivulet::kernels {

void RotaryFrequencies(int key_dim, double* out) {
  constexpr double kPi = 3.14159265358979323846;
  for (int i = 0; i < key_dim / 2; ++i) {
    out[i] = std::pow(10000.0, -2.0 * i / double(key_dim)) / kPi;
  }
}

}  // namespace rivulet::kernels
