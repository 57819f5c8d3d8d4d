// SPDX-License-Identifier: Apache-2.0
// Token embedding with its position:  y = e(token) + p(position),  or  [e(token) ; p(position)].
//   Sinusoidal p over d columns: column 2i = sin(p 10000^(-2i/d)), column 2i + 1 = the cosine.
//   [Vaswani 2017, 3.5]
// Thread: any. Tested by: tests/parity/embed_test.cc
#pragma once

#include <cstdint>

namespace rivulet::kernels {

struct EmbedArgs {
  const float* tokens = nullptr;     // [vocab, columns]
  const float* positions = nullptr;  // this position's [position_columns]; null: no positions
  int columns = 0;                   // of the token part
  int position_columns = 0;
  bool concat = false;  // else add (position_columns == columns)
  int ld = 0;           // width of y; columns past the embedding become 0
};

void EmbedCpu(const EmbedArgs& args, int32_t token, float* y);

// Sinusoidal position `p` in `columns` values, computed in double and rounded once.
void SinusoidalPosition(int64_t p, int columns, float* out);

}  // namespace rivulet::kernels
