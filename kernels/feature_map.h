// SPDX-License-Identifier: Apache-2.0
// Feature maps phi of linear attention, which replaces softmax's exp(q.k) by phi(q).phi(k).
//
//   elu                      x + 1 for x > 0, else exp(x)  [Katharopoulos 2020, eq. 7]
//   random_fourier           u = (sqrt(t) x) omega;  [cos u, sin u] sqrt(2 / n)  [Rahimi 2007]
//   smoothed_random_fourier  the same over n - 1 dimensions, then one feature equal to s
//   favor                    u as above, h = |sqrt(t) x|^2 / 2 + ln(n) / 2;
//                            [exp(u - h), exp(-u - h)]  [Choromanski 2021, lemma 1]
//   generalized_random_relu  relu(sqrt(t) x omega)  [Choromanski 2021]
//   rfa                      x' = x / max(|x|, 1e-6); u = x' omega_h; [sin u, cos u] / sqrt(n)
//
// Names and constants follow pytorch-fast-transformers (`rfa`: Peng 2021), so checkpoints load
// unchanged.
#pragma once

#include <cstdint>

namespace rivulet::kernels {

enum class FeatureMapKind : uint8_t {
  kElu,
  kRandomFourier,
  kSmoothedRandomFourier,
  kFavor,
  kGeneralizedRandomRelu,
  kRfa,
};

// One head's feature map. Borrowed pointers; shapes in comments.
struct FeatureMapArgs {
  FeatureMapKind kind = FeatureMapKind::kElu;
  int key_dim = 0;    // values of x
  int columns = 0;    // columns of omega; 0 for elu
  float x_scale = 1;  // sqrt(softmax_temp); unused by elu and rfa
  float out_scale =
      1;  // factor of the features: sqrt(2/n) or 1/sqrt(n); for favor ln(n_dims)/2, added to h
  float smoothing = 0;           // the extra feature of smoothed_random_fourier
  const float* omega = nullptr;  // [key_dim, columns]; for rfa already multiplied by sigma
};

// Number of features phi(x) has, the `F` of the state layout.
constexpr int KeyFeatures(FeatureMapKind kind, int key_dim, int columns) {
  switch (kind) {
    case FeatureMapKind::kElu:
      return key_dim;
    case FeatureMapKind::kGeneralizedRandomRelu:
      return columns;
    case FeatureMapKind::kSmoothedRandomFourier:
      return 2 * columns + 1;
    case FeatureMapKind::kRandomFourier:
    case FeatureMapKind::kFavor:
    case FeatureMapKind::kRfa:
      return 2 * columns;
  }
  return 0;
}

// out[f] = phi(x)[f].
//   x [key_dim] float32, out [KeyFeatures(...)] float32; they must not overlap
// Thread: any; no shared state. Numerics: float32, every sum in index order, so the bits depend on
// x and args alone. Cost: key_dim * columns multiply-adds plus one transcendental a feature. Tested
// by: tests/parity/feature_map_test.cc
void FeatureMapRef(const FeatureMapArgs& args, const float* x, double* out);  // double; tests only
void FeatureMapCpu(const FeatureMapArgs& args, const float* x, float* out);

}  // namespace rivulet::kernels
