// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/mixer_rows.h"

namespace rivulet::kernels {
namespace {

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

size_t At(int row, int ld, int column) { return size_t(row) * size_t(ld) + size_t(column); }

}  // namespace

void RotateHeadsRef(const RotateHeadsArgs& args) {
  const auto rotate = [&](float* x, int64_t position) {
    for (int i = 0; i < args.pairs; ++i) {
      const double angle = double(position) * args.frequencies[i] * std::numbers::pi;
      const double c = std::cos(angle) * args.factor, s = std::sin(angle) * args.factor;
      float& a = args.interleaved ? x[2 * i] : x[i];
      float& b = args.interleaved ? x[2 * i + 1] : x[i + args.pairs];
      const double first = a, second = b;
      a = float(first * c - second * s);
      b = float(second * c + first * s);
    }
  };
  for (int row = 0; row < args.rows; ++row) {
    for (int h = 0; h < args.heads + args.key_heads; ++h) {
      float* const heads = h < args.heads ? args.q : args.k;
      const int head = h < args.heads ? h : h - args.heads;
      rotate(heads + At(row, args.ld, head * args.key_dim), args.positions[row]);
    }
  }
}

void LowerBoundKeysRef(const LowerBoundKeysArgs& args) {
  for (int row = 0; row < args.rows; ++row) {
    for (int i = 0; i < args.n; ++i) {
      float& q = args.q[At(row, args.ld, i)];
      float& k = args.k[At(row, args.ld, i)];
      const double bound = args.bound[i], w = bound + (1 - bound) * Sigmoid(k);
      args.w[At(row, args.ld_w, i)] = float(w);
      k = float(1 - w);
      q = float(q * Sigmoid(q));
    }
  }
}

void StepSizesRef(const StepSizesArgs& args) {
  for (int row = 0; row < args.rows; ++row) {
    for (int h = 0; h < args.heads; ++h) {
      float& dt = args.dt[At(row, args.ld, h)];
      const double x = double{dt} + double{args.bias[h]};
      const double step =
          std::min(std::max(std::log1p(std::exp(x)), double{args.least}), double{args.most});
      dt = float(step);
      args.w[At(row, args.ld_w, h)] = float(std::exp(-double{args.scale[h]} * step));
    }
  }
}

void Rwkv7HeadsRef(const Rwkv7HeadsArgs& args) {
  for (int row = 0; row < args.rows; ++row) {
    for (int head = 0; head < args.heads; ++head) {
      const int first = head * args.head_dim, end = first + args.head_dim;
      double squares = 0;
      for (int i = first; i < end; ++i) {
        const double kk = double{args.k[At(row, args.ld, i)]} * double{args.k_k[i]};
        squares += kk * kk;
      }
      for (int i = first; i < end; ++i) {
        const size_t in = At(row, args.ld, i), here = At(row, args.ld_w, i);
        const double k = args.k[in], v = args.v[in], alpha = Sigmoid(args.rate[here]);
        const double kk = k * double{args.k_k[i]} / std::sqrt(squares + 1e-24);
        args.kk[here] = float(kk);
        args.minus[here] = float(-kk * alpha);
        args.k[in] = float(k * (1 + (alpha - 1) * double{args.k_a[i]}));
        args.w[here] = float(std::exp(-double{args.scale[i]} * Sigmoid(args.w[here])));
        if (args.v_mix == nullptr) {
          args.first[here] = float(v);
        } else {
          args.v[in] = float(v + (double{args.first[here]} - v) * Sigmoid(args.v_mix[here]));
        }
      }
    }
  }
}

void Rwkv7OutputsRef(const Rwkv7OutputsArgs& args) {
  const int n = args.head_dim;
  for (int row = 0; row < args.rows; ++row) {
    for (int head = 0; head < args.heads; ++head) {
      float* const o = args.o + At(row, args.ld_o, head * n);
      const size_t in = At(row, args.ld, head * n);
      const size_t gate = At(row, args.ld_o, head * n), weight = size_t(head) * size_t(n);
      double mean = 0, variance = 0, bonus = 0;
      for (size_t i = 0; i < size_t(n); ++i) {
        mean += double{o[i]} / n;
        bonus += double{args.r[in + i]} * double{args.k[in + i]} * double{args.r_k[weight + i]};
      }
      for (size_t i = 0; i < size_t(n); ++i) {
        variance += (double{o[i]} - mean) * (double{o[i]} - mean) / n;
      }
      for (size_t i = 0; i < size_t(n); ++i) {
        const double normed = (double{o[i]} - mean) / std::sqrt(variance + double{args.eps}) *
                                  double{args.weight[weight + i]} +
                              double{args.bias[weight + i]};
        o[i] = float((normed + bonus * double{args.v[in + i]}) * double{args.gate[gate + i]});
      }
    }
  }
}

}  // namespace rivulet::kernels
