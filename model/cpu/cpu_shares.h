// SPDX-License-Identifier: Apache-2.0
// How the threads of a pass divide its work.
#pragma once

#include <cstdint>

#include "kernels/gemm.h"
#include "model/cpu/cpu_weights.h"

namespace rivulet {

struct IndexRange {
  int begin, end;
};

// Share of `thread` in 0 .. n - 1, contiguous.
inline IndexRange ShareOf(int n, int thread, int threads) {
  return {int(int64_t{n} * thread / threads), int(int64_t{n} * (thread + 1) / threads)};
}

// The panels of `thread` of y = epilogue(x W + b): x [rows, ldx], y [rows, ldy], ldy a whole number
// of panels. kResidual adds to y.
inline void ShareOfProduct(const CpuMatrix& m, const float* x, int ldx, float* y, int ldy, int rows,
                           kernels::Epilogue epilogue, int thread, int threads) {
  const IndexRange panels = ShareOf(kernels::NumPanels(m.packed.n), thread, threads);
  kernels::GemmArgs args;
  args.w = m.packed;
  args.bias = m.bias.data();
  args.x = x;
  args.y = y;
  args.residual = y;
  args.rows = rows;
  args.ldx = ldx;
  args.ldy = ldy;
  args.epilogue = epilogue;
  args.panel_begin = panels.begin;
  args.panel_end = panels.end;
  kernels::GemmCpu(args);
}

}  // namespace rivulet
