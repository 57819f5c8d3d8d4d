// SPDX-License-Identifier: Apache-2.0
// How blocks share the token rows of a pass where a token needs the rows before it, for kernels in
// which each thread takes one column. Included by .cu files only.
//
// With few tokens per segment, a block takes a segment. With many, a block takes kRowsOfBlock token
// rows, whichever segments they belong to: a prompt is then spread over the machine. A token's
// predecessors are rows of x; the state holds the predecessors of a segment's first tokens. Only
// the block that has a segment's first row reads that state, and it writes the new state, from the
// last rows of x. So no two blocks touch a state.
#pragma once

#include "kernels/cuda/common/device_cuda.h"

namespace rivulet::kernels {

inline constexpr int kColumnThreads = 64, kRowsOfBlock = 16;

// Whether blocks take token rows: they do where walking the tokens of a segment may take longer
// than walking the segments of a block's rows.
inline bool BlocksTakeRows(int rows, int num_segments) { return rows - num_segments >= 64; }

// Launches one of two kernels. args.rows: token rows of the pass; those of all segments are below
// it.
template <class Args>
cudaError_t LaunchColumns(const CudaLaunch& launch, void (*of_segments)(Args),
                          void (*of_rows)(Args), const Args& args, int columns) {
  const int64_t across = (int64_t{columns} + kColumnThreads - 1) / kColumnThreads;
  if (!BlocksTakeRows(args.rows, args.num_segments)) {
    return LaunchBlocks(launch, of_segments, across * args.num_segments, kColumnThreads, 0, args);
  }
  const int64_t down = (int64_t{args.rows} + kRowsOfBlock - 1) / kRowsOfBlock;
  return LaunchBlocks(launch, of_rows, across * down, kColumnThreads,
                      kRowsOfBlock * sizeof(int32_t), args);
}

// Calls f(segment, first, count, column) for this block's share of each segment, its tokens first
// .. first + count - 1. `column` may be beyond the last. The first `lead` tokens of a segment,
// whose predecessors are in the state, are always in one share. `columns`: the columns over which
// blocks are spread. With kRows this needs kBlockRows int32 of shared memory.
template <bool kRows, int kThreads = kColumnThreads, int kBlockRows = kRowsOfBlock, class F>
__device__ __forceinline__ void ForEachShare(const CudaSegment* segments, int num_segments,
                                             int columns, int lead, const F& f) {
  const int across = (columns + kThreads - 1) / kThreads;
  const int item = static_cast<int>(blockIdx.x) / across;
  const int column =
      static_cast<int>(blockIdx.x) % across * kThreads + static_cast<int>(threadIdx.x);
  if constexpr (!kRows) {
    const CudaSegment segment = segments[item];
    if (segment.num_rows > 0) f(segment, 0, segment.num_rows, column);
  } else {
    const int first_row = item * kBlockRows;
    auto* const owner = static_cast<int32_t*>(SharedMemory());  // each row's segment; -1: none
    if (threadIdx.x < kBlockRows) owner[threadIdx.x] = -1;
    __syncthreads();
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < num_segments; i += kThreads) {
      const CudaSegment segment = segments[i];
      const int begin = segment.first_row - first_row, end = begin + segment.num_rows;
      for (int r = begin > 0 ? begin : 0; r < end && r < kBlockRows; ++r) owner[r] = i;
    }
    __syncthreads();
#pragma unroll 1
    for (int r = 0; r < kBlockRows;) {
      const int i = owner[r];
      if (i < 0) {
        ++r;
        continue;
      }
      const CudaSegment segment = segments[i];
      const int token = first_row + r - segment.first_row;  // of row r
      const int most = token + kBlockRows - r;
      const int end = segment.num_rows < most ? segment.num_rows : most;
      r += end - token;
      const int leading = segment.num_rows < lead ? segment.num_rows : lead;
      const int from = token > 0 && token < leading ? leading : token;
      const int to = token == 0 && end < leading ? leading : end;
      if (from < to) f(segment, from, to - from, column);
    }
  }
}

}  // namespace rivulet::kernels
