// SPDX-License-Identifier: Apache-2.0
// The state update of gated linear attention, delta rules and state-space models: tokens of one
// sequence, one head, in order. S is [key_dim, value_dim], float32.
//
//   kDecay    S <- diag(w) S + k v^T                                  RetNet, GLA, HGRN2, Mamba-2
//   kDelta    S <- diag(w) S + k (beta (v - (diag(w) S)^T k))^T       DeltaNet, Gated DeltaNet, KDA
//   kRankOne  S <- diag(w) S + b (S^T a)^T + k v^T                    RWKV-7
//   then      y = S^T q
//
// The state is updated BEFORE it is read: a token attends to itself. kDelta corrects the answer of
// the DECAYED state to k; kRankOne reads the state before its decay. Not part of this: what a kind
// does before to q, k, v, w, and after to y (scale of q, dt of Mamba-2, norms, gates, bonus).
// [RetNet: Sun 2023, eq. 6; GLA: Yang 2024, eq. 3; HGRN2: Qin 2024; Mamba-2: Dao & Gu 2024;
// DeltaNet: Schlag 2021, Yang 2024; Gated DeltaNet: Yang 2025, eq. 10; KDA: Kimi Linear 2025;
// RWKV-7: Peng 2025]
//
// Memory traffic: S is read once and written once a call, in blocks of columns that stay in the
// first-level cache for all tokens. Numerics: a column of S and its y depend on that column alone;
// sums over keys run in index order, with one accumulator for even keys and one for odd keys.
// Several tokens in one call give the same bits as calls of one token each, so prefill equals
// stepping.
// Thread: any; calls on different states may run at once.
// Tested by: tests/parity/recurrence_test.cc
#pragma once

#include <cstddef>
#include <cstdint>

namespace rivulet::kernels {

enum class UpdateRule : uint8_t { kDecay, kDelta, kRankOne };

// One vector per token; the vector of token t begins at data + t * stride. Stride 0: all tokens
// share one.
struct TokenVectors {
  const float* data = nullptr;
  size_t stride = 0;
};

struct RecurrenceArgs {
  UpdateRule rule = UpdateRule::kDecay;
  int tokens = 0, key_dim = 0, value_dim = 0;
  int w_dim = 0;       // values of w a token: 0 (w = 1), 1 (the same for all keys) or key_dim
  TokenVectors q;      // [key_dim]
  TokenVectors k;      // [key_dim]
  TokenVectors v;      // [value_dim]
  TokenVectors w;      // [w_dim], the factor itself, not its logarithm
  TokenVectors beta;   // [1], kDelta alone
  TokenVectors a, b;   // [key_dim] each, kRankOne alone
  float* s = nullptr;  // [key_dim, value_dim] in-out
  // [value_dim] a token. May be v's memory, with v's stride; no other arrays may overlap.
  float* y = nullptr;
  size_t y_stride = 0;  // >= value_dim
};

void RecurrenceRef(const RecurrenceArgs& args);  // double within a call; tests only
// Cost of a token: 5 (kDecay), 7 (kDelta) or 9 (kRankOne) * key_dim * value_dim flop.
void RecurrenceCpu(const RecurrenceArgs& args);

}  // namespace rivulet::kernels
