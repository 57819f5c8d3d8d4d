// SPDX-License-Identifier: Apache-2.0
// The shape of a block of linear_attention_prefill_cuda.cu, and the role of the warps that hold S.
// That file shows all roles; only it includes this header.
#pragma once

#include "kernels/cuda/attention/linear_attention_shape_cuda.h"
#include "kernels/cuda/common/async_copy_cuda.h"

namespace rivulet::kernels {

template <class O, bool kFew>
struct LongShape {
  using Order = O;
  static constexpr int kF = O::kFeatures, kGroups = O::kGroups;
  static constexpr int kTokens = kFew ? 32 : 16;                    // of a tile
  static constexpr int kStages = kFew ? 2 : 1;                      // lanes that share a group
  static constexpr int kMine = O::kGroup / kStages;                 // features of a lane
  static constexpr int kWidth = kFew ? 1 : 4;                       // columns of a lane
  static constexpr int kAcross = kWarpLanes / (kGroups * kStages);  // lanes side by side
  static constexpr int kColumns = kFew ? 4 : 32;                    // of a block
  static constexpr int kStateWarps = kColumns / (kAcross * kWidth);
  static constexpr int kMoveWarps = 2, kWarps = kStateWarps + 1 + kMoveWarps;
  static constexpr int kThreads = kWarps * kWarpLanes;
  static constexpr int kTiles = O::kValues / kColumns;         // blocks of a head
  static constexpr int kBlocks = kMine * kWidth > 32 ? 2 : 3;  // per multiprocessor
  static_assert(kMine % 4 == 0 && kStateWarps * kAcross * kWidth == kColumns);

  // Shared memory, in floats. Two tiles of tokens: phi [kTokens][q, k][kF], v [kTokens][kColumns],
  // g [kTokens]. Two outputs: sums by group [kGroups][kTokens][kColumns], 1 / n [kTokens]. q z
  // [kTokens][lanes + 1].
  static constexpr int kPhi = kTokens * 2 * kF, kV = kTokens * kColumns;
  static constexpr int kInput = kPhi + kV + kTokens;
  static constexpr int kOutput = kGroups * kTokens * kColumns + kTokens;
  static constexpr int kShared = 2 * (kInput + kOutput) + kTokens * (kWarpLanes + 1);
};

// The work of a block, for all its roles.
template <class Shape>
struct BlockWork {
  float* shared;
  int head, column;  // column: the block's first
  int first_row, rows;

  __device__ int tiles() const { return (rows + Shape::kTokens - 1) / Shape::kTokens; }
  __device__ int tokens(int tile) const {
    const int left = rows - tile * Shape::kTokens;
    return left < Shape::kTokens ? left : Shape::kTokens;
  }
  __device__ float* input(int tile) const { return shared + tile % 2 * Shape::kInput; }
  __device__ float* output(int tile) const {
    return shared + 2 * Shape::kInput + tile % 2 * Shape::kOutput;
  }
  __device__ float* inverse(int tile) const {
    return output(tile) + Shape::kGroups * Shape::kTokens * Shape::kColumns;
  }
  __device__ float* products() const { return shared + 2 * (Shape::kInput + Shape::kOutput); }
};

template <class Shape, bool kGated>
class StateWarp {
 public:
  __device__ explicit StateWarp(int warp)
      : group_(LaneIndex() / (Shape::kAcross * Shape::kStages)),
        stage_(LaneIndex() / Shape::kAcross % Shape::kStages),
        column_((warp * Shape::kAcross + LaneIndex() % Shape::kAcross) * Shape::kWidth) {}

  // Loads the lane's part of S; `s` is at the block's first column. Call it before the wait for the
  // predecessor.
  __device__ void Load(const float* s) {
#pragma unroll
    for (int i = 0; i < Shape::kMine; ++i) {
      if constexpr (Shape::kWidth == 4) {
        const float4 v = EarlyVector(s + Mine(i));
        s_[i][0] = v.x, s_[i][1] = v.y, s_[i][2] = v.z, s_[i][3] = v.w;
      } else {
        s_[i][0] = __ldcg(s + Mine(i));
      }
    }
  }
  __device__ void Store(float* s) const {
#pragma unroll
    for (int i = 0; i < Shape::kMine; ++i) Put(s + Mine(i), s_[i]);
  }

  __device__ void Run(const float* input, int tokens, float* output) {
    float handed[kSome][Shape::kWidth] = {};
    const int some = (tokens + kSome - 1) / kSome;
    for (int i = 0; i < some + Shape::kStages - 1; ++i) {
      const int mine = i - stage_;
      float y[kSome][Shape::kWidth] = {};
      if (mine >= 0 && mine < some) {
        if (mine * kSome + kSome <= tokens) {
          Some<true>(input, mine * kSome, tokens, handed, y, output);
        } else {
          Some<false>(input, mine * kSome, tokens, handed, y, output);
        }
      }
      if constexpr (Shape::kStages > 1) {
#pragma unroll
        for (int t = 0; t < kSome; ++t) {
          const float other = __shfl_up_sync(kAllLanes, y[t][0], Shape::kAcross);
          handed[t][0] = stage_ == 0 ? 0.0f : other;
        }
      }
    }
  }

 private:
  static constexpr int kSome = 4;  // tokens whose sums are passed on together
  static_assert(Shape::kStages == 1 || Shape::kWidth == 1);

  __device__ int Mine(int i) const {
    const int feature = group_ + (stage_ * Shape::kMine + i) * Shape::kGroups;
    return feature * Shape::Order::kValues + column_;
  }

  __device__ static void Get(const float* from, float (&v)[Shape::kWidth]) {
    if constexpr (Shape::kWidth == 4) {
      const float4 f = *reinterpret_cast<const float4*>(from);
      v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
    } else {
      v[0] = *from;
    }
  }
  __device__ static void Put(float* to, const float (&v)[Shape::kWidth]) {
    if constexpr (Shape::kWidth == 4) {
      *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
    } else {
      *to = v[0];
    }
  }

  // Tokens first .. first + kSome - 1; without kAll only those below `tokens`.
  template <bool kAll>
  __device__ __forceinline__ void Some(const float* input, int first, int tokens,
                                       const float (&handed)[kSome][Shape::kWidth],
                                       float (&y)[kSome][Shape::kWidth], float* output) {
#pragma unroll
    for (int t = 0; t < kSome; ++t) {
      const int token = first + t;
      if (!kAll && token >= tokens) break;
      const float* q =
          input + token * 2 * Shape::kF + group_ * Shape::Order::kGroup + stage_ * Shape::kMine;
      const float* k = q + Shape::kF;
      float v[Shape::kWidth];
      Get(input + Shape::kPhi + token * Shape::kColumns + column_, v);
      const float g = kGated ? input[Shape::kPhi + Shape::kV + token] : 1.0f;
#pragma unroll
      for (int c = 0; c < Shape::kWidth; ++c) y[t][c] = handed[t][c];
#pragma unroll
      for (int i = 0; i < Shape::kMine; i += 4) {
        float qf[4], kf[4];
        const float4 q4 = *reinterpret_cast<const float4*>(q + i);
        const float4 k4 = *reinterpret_cast<const float4*>(k + i);
        qf[0] = q4.x, qf[1] = q4.y, qf[2] = q4.z, qf[3] = q4.w;
        kf[0] = k4.x, kf[1] = k4.y, kf[2] = k4.z, kf[3] = k4.w;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int c = 0; c < Shape::kWidth; ++c) {
            float& s = s_[i + j][c];
            s = fmaf(kf[j], v[c], kGated ? g * s : s);
            y[t][c] = fmaf(qf[j], s, y[t][c]);
          }
        }
      }
      if (stage_ == Shape::kStages - 1) {
        Put(output + (group_ * Shape::kTokens + token) * Shape::kColumns + column_, y[t]);
      }
    }
  }

  const int group_, stage_, column_;
  float s_[Shape::kMine][Shape::kWidth];
};

}  // namespace rivulet::kernels
