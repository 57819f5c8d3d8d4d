// SPDX-License-Identifier: Apache-2.0
// Operations on the elements and on the groups of rows with their data, for the tests of the CPU
// kernels and the CUDA kernels. After each row is a padding, which no kernel touches.
#pragma once

#include <limits>
#include <vector>

#include "kernels/activation.h"
#include "kernels/decay.h"
#include "kernels/group_norm.h"
#include "kernels/layer_norm.h"
#include "kernels/rms_norm.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {

// `args` of a case point to its own arrays, except y.
template <class Args>
struct RowsCase {
  RowsCase(int columns, float low, float high)
      : used(columns), stride(size_t(columns + 4)), x(RandomFloats(kRows * stride, 1, low, high)) {
    args.x = x.data();
    args.x_stride = args.y_stride = stride;
    args.rows = kRows;
  }
  RowsCase(const RowsCase&) = delete;
  RowsCase& operator=(const RowsCase&) = delete;

  // The result of `reference` on x, in place.
  std::vector<float> InPlace(void (*reference)(const Args&)) const {
    std::vector<float> rows = x;
    Args of = args;
    of.x = of.y = rows.data();
    reference(of);
    return rows;
  }
  bool InPadding(size_t i) const { return int(i % stride) >= used; }

  static constexpr int kRows = 7;
  int used;
  size_t stride;
  std::vector<float> x;
  Args args;
};

struct ActivationCase : RowsCase<ActivationArgs> {
  ActivationCase(Activation kind, int n, float most, bool with_bias, bool with_times)
      : RowsCase(n, -most, most),
        bias(RandomFloats(size_t(n), 3)),
        times(RandomFloats(x.size(), 2)) {
    args.kind = kind;
    args.n = n;
    args.bias = with_bias ? bias.data() : nullptr;
    args.times = with_times ? times.data() : nullptr;
    args.times_stride = stride;
  }
  std::vector<float> bias, times;
};

constexpr Activation kActivations[] = {Activation::kIdentity, Activation::kSigmoid,
                                       Activation::kSilu,     Activation::kSoftplus,
                                       Activation::kTanh,     Activation::kSquaredRelu};

// x is at most `most`. Calls f(case).
template <class F>
void ForEachActivation(float most, const F& f) {
  for (const Activation kind : kActivations) {
    for (const int n : {1, 7, 16, 37, 45, 130}) {
      for (const int options : {0, 1, 2, 3}) {
        f(ActivationCase(kind, n, most, options % 2 == 1, options / 2 == 1));
      }
    }
  }
}

struct DecayCase : RowsCase<DecayArgs> {
  DecayCase(DecayKind kind, int n, float low, bool negate, bool with_bias, bool with_floor)
      : RowsCase(n, low, 6),
        bias(RandomFloats(size_t(n), 2)),
        scale(RandomFloats(size_t(n), 3, 0, 2)) {
    args.kind = kind;
    args.negate = negate;
    args.n = n;
    args.bias = with_bias ? bias.data() : nullptr;
    args.scale = scale.data();
    if (with_floor) args.floor = -0.25f;
  }
  std::vector<float> bias, scale;
};

// Calls f(case). `least`: the least dt; a negative dt gives a factor above 1.
template <class F>
void ForEachDecay(float least, const F& f) {
  for (const DecayKind kind : {DecayKind::kIdentity, DecayKind::kSoftplus, DecayKind::kSigmoid}) {
    for (const int n : {1, 7, 16, 37, 45}) {
      for (int options = 0; options < 8; ++options) {
        const bool negate = options % 2 == 1, is_dt = kind == DecayKind::kIdentity && !negate;
        f(DecayCase(kind, n, is_dt ? least : -6.0f, negate, options / 2 % 2 == 1,
                    options / 4 == 1));
      }
    }
  }
}

// Groups of rows. A group of at least 264 values has its own block on a GPU, if its size is a
// multiple of 4.
struct RowGroups {
  int groups, size;
};
constexpr RowGroups kRowGroups[] = {{1, 1},   {3, 1},   {1, 2},   {3, 2},   {3, 8},  {1, 15},
                                    {3, 15},  {1, 16},  {3, 16},  {1, 17},  {3, 17}, {1, 33},
                                    {1, 45},  {3, 45},  {1, 64},  {2, 64},  {3, 64}, {1, 256},
                                    {3, 256}, {2, 264}, {1, 302}, {1, 1100}};

template <class Args>
struct GroupsCase : RowsCase<Args> {
  GroupsCase(const RowGroups& shape, bool with_weight, float eps)
      : RowsCase<Args>(shape.groups * shape.size, -3, 5),
        weight(RandomFloats(size_t(this->used), 2, 0.5f, 1.5f)) {
    this->args.weight = with_weight ? weight.data() : nullptr;
    this->args.groups = shape.groups;
    this->args.size = shape.size;
    this->args.eps = eps;
  }
  std::vector<float> weight;
};

// Calls f(case): with a weight for each group, one weight for all groups, and no weight.
template <class F>
void ForEachRmsNorm(const F& f) {
  for (const RowGroups& shape : kRowGroups) {
    for (const int weights : {0, 1, 2}) {
      GroupsCase<RmsNormArgs> c(shape, weights > 0, 1e-5f);
      if (weights == 2) c.args.weight_stride = size_t(shape.size);
      f(c);
    }
  }
}

struct GroupNormCase : GroupsCase<GroupNormArgs> {
  GroupNormCase(const RowGroups& shape, bool with_weight, bool with_bias)
      : GroupsCase(shape, with_weight, 64e-5f), bias(RandomFloats(size_t(used), 3)) {
    args.bias = with_bias ? bias.data() : nullptr;
  }
  std::vector<float> bias;
};

template <class F>
void ForEachGroupNorm(const F& f) {
  for (const RowGroups& shape : kRowGroups) {
    for (const bool weight : {true, false}) {
      for (const bool bias : {true, false}) f(GroupNormCase(shape, weight, bias));
    }
  }
}

// Rows of n values, and zeros behind them up to ld.
struct LayerNormCase {
  LayerNormCase(int n, int ld)
      : x(RandomFloats(size_t(kRows * ld), 1, -3, 5)),
        weight(RandomFloats(size_t(n), 2, 0.5f, 1.5f)),
        bias(RandomFloats(size_t(n), 3)),
        expected(x.size()) {
    LayerNormRef(Args(x.data(), expected.data(), weight.data(), bias.data()));
  }
  LayerNormArgs Args(const float* from, float* to, const float* w, const float* b) const {
    return {from, to, w, b, kRows, int(weight.size()), int(x.size()) / kRows, 1e-5f};
  }
  static constexpr int kRows = 7;
  std::vector<float> x, weight, bias, expected;
};

constexpr int kLayerNormSizes[] = {1, 2, 3, 5, 15, 16, 17, 31, 45, 127, 128, 129, 256, 384, 1000};

// On every CPU target: near the reference, and equal bits on the targets with fused multiply-add.
template <class Args, class Tolerance>
void ExpectRowsOnEveryCpuTarget(const RowsCase<Args>& c, void (*reference)(const Args&),
                                void (*cpu)(const Args&), const Tolerance& tolerance) {
  std::vector<float> expected(c.x.size(), std::numeric_limits<float>::quiet_NaN());
  Args args = c.args;
  args.y = expected.data();
  reference(args);
  ExpectOnEveryCpuTarget(expected, tolerance, [&](float* y) {
    args.y = y;
    cpu(args);
  });
}

}  // namespace rivulet::kernels
