// SPDX-License-Identifier: Apache-2.0
// Activations and gates, element by element:
//
//   y = f(x + bias) * times
//
//   kIdentity     x
//   kSigmoid      1 / (1 + exp(-x))
//   kSilu         x sigmoid(x)                                  [Hendrycks & Gimpel 2016]
//   kSoftplus     ln(1 + exp(x)); ln(sigmoid(x)) is -softplus(-x)
//   kTanh         tanh(x)
//   kSquaredRelu  max(x, 0)^2                                   [So 2021]
//
// SwiGLU [Shazeer 2020] is kSilu of the gate times the other half; an output gate is kSilu,
// kSigmoid or kIdentity of the gate times the output.
//
// Against double the relative error of f is below 3e-7 where |f(x)| >= 2e-36; the absolute error of
// smaller values is below 2e-38. NaN stays NaN; silu(-infinity) is NaN too. An element's bits
// depend on its own inputs alone. Thread: any.
// Tested by: tests/parity/activation_test.cc
#pragma once

#include <cstddef>
#include <cstdint>

namespace rivulet::kernels {

enum class Activation : uint8_t { kIdentity, kSigmoid, kSilu, kSoftplus, kTanh, kSquaredRelu };

struct ActivationArgs {
  Activation kind = Activation::kIdentity;
  int rows = 0, n = 0;
  const float* x = nullptr;      // [rows, x_stride]
  const float* bias = nullptr;   // [n]; null: 0
  const float* times = nullptr;  // [rows, times_stride]; null: 1
  float* y = nullptr;            // [rows, y_stride]; may be x or times with the same stride
  size_t x_stride = 0, times_stride = 0, y_stride = 0;
};

void ActivationRef(const ActivationArgs& args);  // double; tests only
void ActivationCpu(const ActivationArgs& args);

}  // namespace rivulet::kernels
