// SPDX-License-Identifier: Apache-2.0
// One recurrence with its data, for the tests of the CPU kernel and the CUDA kernel.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "kernels/recurrence.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {

// Rows [q | k | v | w | beta | a | b] of all heads, `tokens` for each of `slots` sequences.
// `before` floats precede each state.
struct RecurrenceCase {
  RecurrenceCase(UpdateRule which, int decays, int keys, int values, int count, int of_heads = 1,
                 int sequences = 1, int floats_before = 0)
      : rule(which),
        w_dim(decays),
        key_dim(keys),
        value_dim(values),
        tokens(count),
        heads(of_heads),
        slots(sequences),
        before(floats_before),
        rows(RandomFloats(size_t(slots * tokens * ld()), 7)),
        states(RandomFloats(size_t(slots) * floats_per_slot(), 8)) {
    // |S| stays bounded: decays in [0.7, 1], vectors of length below 1.
    const float length = 1 / std::sqrt(float(keys));
    for (int r = 0; r < slots * tokens; ++r) {
      float* const row = rows.data() + r * ld();
      for (int i = 0; i < v(); ++i) row[i] *= length;
      for (int i = w(); i < beta(); ++i) row[i] = 0.85f + 0.15f * row[i];
      for (int i = beta(); i < a(); ++i) row[i] = 0.5f + 0.5f * row[i];
      for (int i = a(); i < b() + k(); ++i) row[i] *= 0.7f * length;
    }
  }
  int k() const { return heads * key_dim; }
  int v() const { return 2 * k(); }
  int w() const { return v() + heads * value_dim; }
  int beta() const { return w() + k(); }
  int a() const { return beta() + heads; }
  int b() const { return a() + k(); }
  int ld() const { return b() + k() + 3; }
  int ld_y() const { return heads * value_dim + 2; }
  size_t y_size() const { return size_t(slots * tokens * ld_y()); }
  size_t s_at(int head) const { return size_t(before + head * key_dim * value_dim); }
  size_t floats_per_slot() const { return (s_at(heads) + 15) / 16 * 16; }

  // `count` tokens of sequence `slot` from `first` on; `y` and `states` are of all sequences.
  RecurrenceArgs Args(int slot, int first, int count, float* y, float* all_states,
                      int head = 0) const {
    const size_t stride = size_t(ld());
    const float* const row = rows.data() + (slot * tokens + first) * ld();
    RecurrenceArgs args;
    args.rule = rule;
    args.tokens = count;
    args.key_dim = key_dim;
    args.value_dim = value_dim;
    args.w_dim = w_dim;
    args.q = {row + head * key_dim, stride};
    args.k = {row + k() + head * key_dim, stride};
    args.v = {row + v() + head * value_dim, stride};
    if (w_dim > 0) args.w = {row + w() + head * w_dim, stride};
    if (rule == UpdateRule::kDelta) args.beta = {row + beta() + head, stride};
    if (rule == UpdateRule::kRankOne) {
      args.a = {row + a() + head * key_dim, stride};
      args.b = {row + b() + head * key_dim, stride};
    }
    args.s = all_states + size_t(slot) * floats_per_slot() + s_at(head);
    args.y = y + (slot * tokens + first) * ld_y() + head * value_dim;
    args.y_stride = size_t(ld_y());
    return args;
  }

  UpdateRule rule;
  int w_dim, key_dim, value_dim, tokens, heads, slots, before;
  std::vector<float> rows, states;
};

// Every rule with no decays, one per head, and one per key, at odd shapes. tokens 0: many.
inline std::vector<RecurrenceCase> RecurrenceCases(int heads = 1, int slots = 1, int before = 0,
                                                   int tokens = 0) {
  std::vector<RecurrenceCase> cases;
  for (const UpdateRule rule : {UpdateRule::kDecay, UpdateRule::kDelta, UpdateRule::kRankOne}) {
    for (const auto& [keys, values, length] : {std::array{1, 1, 9},
                                               {6, 5, 5},
                                               {7, 5, 23},
                                               {16, 36, 5},
                                               {16, 64, 40},
                                               {33, 100, 17},
                                               {64, 32, 12},
                                               {64, 64, 5},
                                               {65, 17, 5},
                                               {130, 12, 5},
                                               {300, 6, 5}}) {
      for (const int w_dim : {0, 1, keys}) {
        cases.emplace_back(rule, w_dim, keys, values, tokens == 0 ? length : tokens, heads, slots,
                           before);
      }
    }
  }
  return cases;
}

inline std::string Name(const RecurrenceCase& c) {
  return "rule " + std::to_string(int(c.rule)) + " w_dim " + std::to_string(c.w_dim) + " of " +
         std::to_string(c.key_dim) + " x " + std::to_string(c.value_dim);
}

}  // namespace rivulet::kernels
