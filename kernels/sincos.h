// SPDX-License-Identifier: Apache-2.0
// Sine and cosine in float64 from multiplications and additions alone: the same bits on every
// machine, whatever its C library.
#pragma once

#include <cmath>

namespace rivulet::kernels {

// Of |x| up to 2^24. Absolute error below 1e-15.
struct SinCos {
  explicit SinCos(double x) {
    // x - n pi/2 in [-pi/4, pi/4]. The first two parts of pi/2 have 25 bits, so that n times them
    // is exact.
    constexpr double kFirst = 0x1.921fb5p+0, kSecond = 0x1.110b46p-26,
                     kRest = 0x1.1a62633145c07p-54;
    const double n = std::floor(x * 0.63661977236758134 + 0.5);
    const double r = x - n * kFirst - n * kSecond - n * kRest, z = r * r;
    // Taylor's series, whose next terms are below 1e-19 there.
    double s = 0, c = 0;
    for (int i = 17; i >= 3; i -= 2) s = (1 + s) * -z / (i * (i - 1));
    for (int i = 18; i >= 2; i -= 2) c = (1 + c) * -z / (i * (i - 1));
    s = r + r * s;
    c = 1 + c;
    const int quarter = static_cast<int>(n - 4 * std::floor(n / 4));
    sin = quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c;
    cos = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;
  }
  double sin, cos;
};

}  // namespace rivulet::kernels
