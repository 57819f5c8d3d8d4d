// SPDX-License-Identifier: Apache-2.0
//   y[m][t] = x[t] + (x[t - 1] - x[t]) * mix[m],   x = norm of the rows as they are given
#include "kernels/cuda/blocks/group_statistics_cuda.h"
#include "kernels/cuda/blocks/segment_rows_cuda.h"
#include "kernels/cuda/blocks/token_shift_cuda.h"

namespace rivulet::kernels {
namespace {

// With more rows per block, fewer rows are normed twice, but fewer blocks share the work.
constexpr int kThreads = 256, kBlockRows = 4;

// Shared memory: the owners of ForEachShare, statistics, two rows.
constexpr size_t kOwners = kBlockRows * sizeof(int32_t), kRowsAt = kOwners + 16;
static_assert(sizeof(RowStatistics) <= 16);
size_t SharedOf(int n) { return kRowsAt + 2 * static_cast<size_t>(n) * sizeof(float); }

// A thread takes columns threadIdx.x, threadIdx.x + kThreads, ... of every row, so that it reads
// only its own writes again; one warp sums a row.
class Shift {
 public:
  __device__ explicit Shift(const CudaTokenShiftArgs& p)
      : p_(p),
        statistics_(reinterpret_cast<RowStatistics*>(Bytes() + kOwners)),
        row_(reinterpret_cast<float*>(Bytes() + kRowsAt)),
        before_(row_ + p.n) {}

  // Tokens first .. first + count - 1 of a segment, after the row before them: a row of another
  // share, or the state, which then becomes the segment's last row.
  __device__ __forceinline__ void Run(const CudaSegment& segment, int first, int count) {
#pragma unroll 1
    for (int t = first - 1; t < first + count; ++t) {
      const bool begin = t < first;
      // The only row of a segment is normed already: it is the new state.
      if (begin || segment.num_rows > 1) {
        Norm(segment.first_row + (t < 0 ? segment.num_rows - 1 : t));
      }
      if (t < 0) {
        TakeState(segment);
        continue;
      }
      if (!begin) Mix(segment.first_row + t);
      float* const passed = before_;
      before_ = row_;
      row_ = passed;
    }
  }

 private:
  static __device__ __forceinline__ unsigned char* Bytes() {
    return static_cast<unsigned char*>(SharedMemory());
  }

  // All threads call it.
  __device__ __forceinline__ void Norm(int row) {
    float* const to = row_;
    const float* const x = p_.x + At(row, p_.ld_x);
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < p_.n; i += kThreads) to[i] = x[i];
    __syncthreads();
    if (WarpIndex() == 0) {
      const RowStatistics s = GroupStatistics<true>(to, p_.n, p_.eps);
      if (LaneIndex() == 0) *statistics_ = s;
    }
    __syncthreads();
    const RowStatistics s = *statistics_;
#pragma unroll 2
    for (int i = static_cast<int>(threadIdx.x); i < p_.n; i += kThreads) {
      to[i] = NormOf<true>(to[i], s, __ldg(p_.weight + i), __ldg(p_.bias + i));
    }
  }

  __device__ __forceinline__ void TakeState(const CudaSegment& segment) {
    float* const state =
        p_.states + static_cast<size_t>(segment.slot) * p_.floats_per_slot + p_.offset;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < p_.n; i += kThreads) {
      before_[i] = state[i];
      state[i] = row_[i];
    }
  }

  __device__ __forceinline__ void Mix(int row) const {
    const size_t to = At(row, p_.ld_y);
    for (int i = static_cast<int>(threadIdx.x); i < p_.n; i += kThreads) {
      const float x = row_[i], step = before_[i] - x;
      // Loads first: the compiler cannot move loads ahead of stores that may alias them.
      float mix[kMaxCudaMixes];
#pragma unroll
      for (int m = 0; m < kMaxCudaMixes; ++m) {
        mix[m] = m < p_.mixes ? p_.mix[At(m, p_.n, i)] : 0.0f;
      }
#pragma unroll
      for (int m = 0; m < kMaxCudaMixes; ++m) {
        if (m >= p_.mixes) break;
        const float y = fmaf(step, mix[m], x);
        const size_t at = to + At(m, p_.mix_stride, i);
        if (p_.y_half == nullptr) {
          p_.y[at] = y;
        } else {
          p_.y_half[at] = RoundF16(y);
        }
      }
    }
  }

  const CudaTokenShiftArgs& p_;
  RowStatistics* const statistics_;
  float *row_, *before_;
};

template <bool kRows>
__global__ void __launch_bounds__(kThreads) NormTokenShift(CudaTokenShiftArgs p) {
  WaitForPredecessor();
  Shift shift(p);
  ForEachShare<kRows, kThreads, kBlockRows>(p.segments, p.num_segments, /*columns=*/1, /*lead=*/1,
                                            [&](const CudaSegment& segment, int first, int count,
                                                int) { shift.Run(segment, first, count); });
}

}  // namespace

cudaError_t PrepareTokenShiftCuda() {
  const size_t most = SharedOf(kMaxCudaShiftColumns);
  return FirstError({PrepareLargeKernel(NormTokenShift<false>, most),
                     PrepareLargeKernel(NormTokenShift<true>, most)});
}

cudaError_t TokenShiftCuda(const CudaLaunch& launch, const CudaTokenShiftArgs& args) {
  const bool sizes = args.num_segments >= 0 && args.rows >= 0 && args.n >= 1 &&
                     args.n <= kMaxCudaShiftColumns && args.mixes >= 1 &&
                     args.mixes <= kMaxCudaMixes && args.ld_x >= args.n && args.ld_y >= args.n &&
                     (args.mixes == 1 || args.mix_stride >= args.n);
  const bool arrays = args.segments != nullptr && args.x != nullptr &&
                      (args.y == nullptr) != (args.y_half == nullptr) && args.mix != nullptr &&
                      args.weight != nullptr && args.bias != nullptr && args.states != nullptr &&
                      args.x != args.y;
  if (!sizes || !arrays) return cudaErrorInvalidValue;
  // A block walks over its tokens, so a prompt needs more than one.
  const bool by_rows = args.rows > args.num_segments;
  const int64_t blocks =
      by_rows ? (int64_t{args.rows} + kBlockRows - 1) / kBlockRows : int64_t{args.num_segments};
  return LaunchBlocks(launch, by_rows ? NormTokenShift<true> : NormTokenShift<false>, blocks,
                      kThreads, SharedOf(args.n), args);
}

}  // namespace rivulet::kernels
