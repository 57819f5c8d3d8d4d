// SPDX-License-Identifier: Apache-2.0
// The factor by which the state decays at a token:
//
//   w = exp(max(floor, -scale[c] f(z))),   z = x + bias[c],  or  -x - bias[c] where `negate`
//
//   kIdentity  f(z) = z             Mamba-2: x is dt, scale exp(A_log)          [Dao & Gu 2024]
//   kSoftplus  f(z) = ln(1 + e^z)   Gated DeltaNet, KDA: scale exp(A_log); with `negate` f is
//                                   -ln(sigmoid(x)): GLA with scale 1 / 16      [Yang 2024, 2025]
//   kSigmoid   f(z) = 1 / (1 + e^-z)  RWKV-7: scale e^(-1/2)                    [Peng 2025]
//
// Against double the absolute error of w is below 3e-7 * (1 + scale f) w. An element's bits depend
// on its own inputs alone. Thread: any. Tested by: tests/parity/decay_test.cc
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace rivulet::kernels {

enum class DecayKind : uint8_t { kIdentity, kSoftplus, kSigmoid };

struct DecayArgs {
  DecayKind kind = DecayKind::kSoftplus;
  bool negate = false;
  int rows = 0, n = 0;
  const float* x = nullptr;                               // [rows, x_stride]
  const float* bias = nullptr;                            // [n]; null: 0
  const float* scale = nullptr;                           // [n], at least 0
  float floor = -std::numeric_limits<float>::infinity();  // of the exponent
  float* y = nullptr;                                     // [rows, y_stride]; may be x
  size_t x_stride = 0, y_stride = 0;
};

void DecayRef(const DecayArgs& args);  // double; tests only
void DecayCpu(const DecayArgs& args);

}  // namespace rivulet::kernels
