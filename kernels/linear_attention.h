// SPDX-License-Identifier: Apache-2.0
// Linear attention in its recurrent form: tokens of one sequence, one head, in order.
//
//   S <- g S + a k v^T     z <- g z + a k   no gate: g = a = 1; gate `rfa`: g = sigmoid, a = 1 - g
//   y  = q^T S / n(q . z)                   n(x) = x + eps  or  max(x, min)
// with k = phi(key), q = phi(query). The state is updated BEFORE it is read: a token attends to
// itself. [Katharopoulos 2020, eq. 16-20; gate: Peng 2021, eq. 8]. Equal to the causal masked
// quadratic form (tested).
//
// Several tokens in one call give the same bits as calls of one token each, so prefill equals
// stepping. Thread: any; calls on different states may run at once. Tested by:
// tests/parity/linear_attention_test.cc
#pragma once

#include <cstddef>

#include "kernels/feature_map.h"

namespace rivulet::kernels {

struct LinearAttentionArgs {
  FeatureMapArgs map;            // this head's
  const float* query = nullptr;  // [tokens, ld] before the feature map: key_dim values each
  const float* key = nullptr;    // [tokens, ld]
  const float* value = nullptr;  // [tokens, ld] value_dim values each
  const float* gate = nullptr;   // [tokens, ld] one value before the sigmoid; null: no gate
  float* out = nullptr;          // [tokens, ld_out] value_dim values each
  float* s = nullptr;            // [features, value_dim] in-out
  float* z = nullptr;            // [features] in-out
  float* scratch = nullptr;      // [2 * RoundUp(features, 16)]
  // The S of the caller's next call, to prefetch: heads lie a page apart, and the processor's own
  // prefetch stops at pages. Any address will do; null: none.
  const float* next_s = nullptr;
  size_t ld = 0, ld_out = 0;
  int tokens = 0, features = 0, value_dim = 0;
  bool clamp = false;  // n(x) = max(x, normalizer), else x + normalizer
  float normalizer = 0;
};

// Scratch floats that one call needs.
constexpr size_t LinearAttentionScratch(int features) {
  return 2 * ((size_t(features) + 15) / 16 * 16);
}

void LinearAttentionRef(const LinearAttentionArgs& args);  // double within a token; tests only
// Cost: 8 * features * (value_dim + 1) bytes of state traffic a token, 4 * features * value_dim
// flop.
void LinearAttentionCpu(const LinearAttentionArgs& args);

}  // namespace rivulet::kernels
