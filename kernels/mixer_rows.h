// SPDX-License-Identifier: Apache-2.0
// Operations on token rows around the state update (recurrence.h) that only one or two kinds of
// model need. All arrays are [rows, ..] float32; no array overlaps another. A row's bits depend on
// that row alone.
//
// RotateHeads, rotary positions [Su 2021]: with c, s the cosine and sine of position p times
// frequency i, times factor, in q and k of each head
//   (x_i, x_{i + pairs}) = (x_i c - x_{i + pairs} s, x_{i + pairs} c + x_i s)      i < pairs
// and interleaved the same for (x_{2i}, x_{2i + 1}).
// LowerBoundKeys, HGRN2 [Qin 2024]:
//   w = bound + (1 - bound) sigmoid(k),  k = 1 - w,  q = silu(q)
// StepSizes, Mamba-2 [Dao & Gu 2024]:
//   dt = min(max(ln(1 + exp(dt + bias)), least), most),  w = exp(-scale dt)
// Rwkv7Heads, RWKV-7 [Peng 2025], before the update; a head's length |.| is over its own columns:
//   alpha = sigmoid(rate),  w = exp(-scale sigmoid(w))
//   v += (first - v) sigmoid(v_mix);  in layer 0 (v_mix null) first = v
//   kk = k k_k / sqrt(|k k_k|^2 + 1e-24),  minus = -kk alpha,  k = k (1 + (alpha - 1) k_a)
// Rwkv7Outputs, behind it:
//   o = (GroupNorm(o) + (sum over the head of r k r_k) v) gate
// Tested by: tests/parity/cuda_mixer_rows_test.cc, tests/parity/cuda_causal_conv_test.cc
#pragma once

#include <cstddef>
#include <cstdint>

namespace rivulet::kernels {

struct RotateHeadsArgs {
  float *q = nullptr, *k = nullptr;     // [rows, ld] heads x key_dim, key_heads x key_dim, in place
  const int64_t* positions = nullptr;   // [rows]
  const double* frequencies = nullptr;  // [pairs], over pi, as of RotaryFrequencies()
  int rows = 0, ld = 0, heads = 0, key_heads = 0, key_dim = 0, pairs = 0;  // pairs <= key_dim / 2
  double factor = 1;
  bool interleaved = false;
};

struct LowerBoundKeysArgs {
  float *q = nullptr, *k = nullptr;  // [rows, ld] n values, in place
  float* w = nullptr;                // [rows, ld_w]
  const float* bound = nullptr;      // [n]
  int rows = 0, ld = 0, ld_w = 0, n = 0;
};

struct StepSizesArgs {
  float* dt = nullptr;                            // [rows, ld] a value a head, in place
  float* w = nullptr;                             // [rows, ld_w]
  const float *bias = nullptr, *scale = nullptr;  // [heads]
  float least = 0, most = 0;
  int rows = 0, ld = 0, ld_w = 0, heads = 0;
};

// Every array has n = heads x head_dim columns.
struct Rwkv7HeadsArgs {
  float *k = nullptr, *v = nullptr;                              // [rows, ld], in place
  float* w = nullptr;                                            // [rows, ld_w], in place
  const float* rate = nullptr;                                   // [rows, ld_w]
  const float* v_mix = nullptr;                                  // [rows, ld_w]; null: layer 0
  float* first = nullptr;                                        // [rows, ld_w]: v of layer 0
  float *kk = nullptr, *minus = nullptr;                         // [rows, ld_w]
  const float *k_k = nullptr, *k_a = nullptr, *scale = nullptr;  // [n]
  int rows = 0, ld = 0, ld_w = 0, heads = 0, head_dim = 0;
};

struct Rwkv7OutputsArgs {
  float* o = nullptr;                                              // [rows, ld_o], in place
  const float *r = nullptr, *k = nullptr, *v = nullptr;            // [rows, ld]
  const float* gate = nullptr;                                     // [rows, ld_o]
  const float *weight = nullptr, *bias = nullptr, *r_k = nullptr;  // [n]
  float eps = 0;
  int rows = 0, ld = 0, ld_o = 0, heads = 0, head_dim = 0;
};

// 10000^(-2i / key_dim) / pi for pair i: sines of multiples of pi lose nothing at large angles.
// `out`: [key_dim / 2]
void RotaryFrequencies(int key_dim, double* out);

// In double; tests only.
void RotateHeadsRef(const RotateHeadsArgs& args);
void LowerBoundKeysRef(const LowerBoundKeysArgs& args);
void StepSizesRef(const StepSizesArgs& args);
void Rwkv7HeadsRef(const Rwkv7HeadsArgs& args);
void Rwkv7OutputsRef(const Rwkv7OutputsArgs& args);

}  // namespace rivulet::kernels
