// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <functional>
#include <memory>
#include <numbers>
#include <utility>

#include "kernels/cuda/blocks/mixer_rows_cuda.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels::cuda_mixer_rows_test {
namespace {

constexpr int kRows = 6, kHeads = 3, kPadding = 3;

// Arrays that an operation changes, each of `columns` columns and a padding, and those that it only
// reads. Applies the operation to all rows on host and device, and demands that they agree, that
// the padding stays, and that a row alone has the bits it has among others.
class Rows {
 public:
  using Arrays = std::vector<float*>;

  Rows(std::vector<int> columns, std::vector<std::vector<float>> constants)
      : columns_(std::move(columns)), constants_(std::move(constants)) {
    for (size_t i = 0; i < columns_.size(); ++i) {
      start_.push_back(RandomFloats(size_t(kRows * Ld(i)), uint32_t(10 + i), -3, 3));
    }
  }
  int Ld(size_t array) const { return columns_[array] + kPadding; }

  // `operation(launch, arrays, constants, first row, rows)`; launch null: the reference.
  using Operation = std::function<cudaError_t(const CudaLaunch*, const Arrays&, const Arrays&,
                                              int first, int rows)>;
  void Check(const Operation& operation) const {
    std::vector<std::vector<float>> expected = start_, constants = constants_;
    ASSERT_EQ(operation(nullptr, Pointers(expected), Pointers(constants), 0, kRows), cudaSuccess);
    ForEachOrder([&](const CudaLaunch& launch) {
      const std::vector<std::vector<float>> all = Run(launch, operation, {{0, kRows}});
      const std::vector<std::vector<float>> cut = Run(launch, operation, {{2, 1}, {0, 2}, {3, 3}});
      for (size_t a = 0; a < all.size(); ++a) {
        ASSERT_TRUE(Near(all[a], expected[a], AtLeastOne(1e-5))) << "array " << a;
        for (size_t i = 0; i < all[a].size(); ++i) {
          const bool padding = int(i) % Ld(a) >= columns_[a];
          ASSERT_TRUE(!padding || all[a][i] == start_[a][i]) << "array " << a << " at " << i;
        }
        ASSERT_TRUE(SameBits(cut[a], all[a])) << "array " << a;
      }
    });
  }

 private:
  struct Part {
    int first, rows;
  };
  static Arrays Pointers(std::vector<std::vector<float>>& arrays) {
    Arrays pointers;
    for (std::vector<float>& array : arrays) pointers.push_back(array.data());
    return pointers;
  }
  std::vector<std::vector<float>> Run(const CudaLaunch& launch, const Operation& operation,
                                      const std::vector<Part>& parts) const {
    std::vector<std::unique_ptr<DeviceArray<float>>> arrays, constants;
    Arrays changed, read;
    for (const auto& values : start_) {
      arrays.push_back(std::make_unique<DeviceArray<float>>(values));
      changed.push_back(arrays.back()->data());
    }
    for (const auto& values : constants_) {
      constants.push_back(std::make_unique<DeviceArray<float>>(values));
      read.push_back(constants.back()->data());
    }
    for (const Part& part : parts) {
      EXPECT_EQ(operation(&launch, changed, read, part.first, part.rows), cudaSuccess);
    }
    std::vector<std::vector<float>> got;
    for (const auto& array : arrays) got.push_back(array->Copy());
    return got;
  }

  const std::vector<int> columns_;
  const std::vector<std::vector<float>> constants_;
  std::vector<std::vector<float>> start_;
};

template <class Args>
cudaError_t Apply(const CudaLaunch* launch, const Args& args,
                  cudaError_t (*cuda)(const CudaLaunch&, const Args&), void (*ref)(const Args&)) {
  if (launch != nullptr) return cuda(*launch, args);
  ref(args);
  return cudaSuccess;
}

TEST(CudaMixerRowsTest, HeadsAreRotatedByTheirPosition) {
  for (const auto& [key_dim, pairs, key_heads] :
       {std::array{2, 1, kHeads}, {10, 5, 1}, {300, 150, kHeads}, {12, 2, 2}, {64, 32, kHeads}}) {
    const int n = kHeads * key_dim, dim = key_dim, rotated = pairs, of_keys = key_heads;
    const Rows rows({n + key_heads * key_dim}, {});
    const std::vector<int64_t> positions = {0, 1, 2, 777, 100000, 4000000000};
    std::vector<double> frequencies(size_t(key_dim / 2));
    RotaryFrequencies(key_dim, frequencies.data());
    EXPECT_EQ(frequencies[0] * std::numbers::pi, 1);
    const DeviceArray<int64_t> device_positions(positions);
    const DeviceArray<double> device_frequencies(frequencies);
    rows.Check([&](const CudaLaunch* launch, const Rows::Arrays& x, const Rows::Arrays&, int first,
                   int count) {
      RotateHeadsArgs args;
      args.ld = rows.Ld(0);
      args.q = x[0] + first * args.ld;
      args.k = args.q + n;
      args.positions = (launch == nullptr ? positions.data() : device_positions.data()) + first;
      args.frequencies = launch == nullptr ? frequencies.data() : device_frequencies.data();
      args.rows = count;
      args.heads = kHeads;
      args.key_heads = of_keys;
      args.key_dim = dim;
      args.pairs = rotated;
      args.factor = dim == 12 ? 1.25 : 1;
      args.interleaved = dim == 64;
      return Apply(launch, args, RotateHeadsCuda, RotateHeadsRef);
    });
  }
}

TEST(CudaMixerRowsTest, KeysHaveTheirLowerBound) {
  const int n = 150;
  const Rows rows({2 * n, n}, {RandomFloats(size_t(n), 1, 0, 1)});
  rows.Check([&](const CudaLaunch* launch, const Rows::Arrays& x, const Rows::Arrays& constants,
                 int first, int count) {
    LowerBoundKeysArgs args;
    args.ld = rows.Ld(0);
    args.ld_w = rows.Ld(1);
    args.q = x[0] + first * args.ld;
    args.k = args.q + n;
    args.w = x[1] + first * args.ld_w;
    args.bound = constants[0];
    args.rows = count;
    args.n = n;
    return Apply(launch, args, LowerBoundKeysCuda, LowerBoundKeysRef);
  });
}

TEST(CudaMixerRowsTest, Rwkv7HeadsMatchTheReferenceInTheFirstLayerAndBehindIt) {
  for (const int head_dim : {1, 16, 65}) {
    const int n = kHeads * head_dim;
    const auto vector = [&](uint32_t seed) { return RandomFloats(size_t(n), seed, 0.2f, 1.5f); };
    // [k | v] in place, then w, rate, v_mix, first, kk, minus.
    const Rows rows({2 * n, n, n, n, n, n, n}, {vector(1), vector(2), vector(3)});
    for (const bool first_layer : {true, false}) {
      rows.Check([&](const CudaLaunch* launch, const Rows::Arrays& x, const Rows::Arrays& constants,
                     int first, int count) {
        Rwkv7HeadsArgs args;
        args.ld = rows.Ld(0);
        args.ld_w = rows.Ld(1);
        const int at = first * args.ld_w;
        args.k = x[0] + first * args.ld;
        args.v = args.k + n;
        args.w = x[1] + at;
        args.rate = x[2] + at;
        args.v_mix = first_layer ? nullptr : x[3] + at;
        args.first = x[4] + at;
        args.kk = x[5] + at;
        args.minus = x[6] + at;
        args.k_k = constants[0];
        args.k_a = constants[1];
        args.scale = constants[2];
        args.rows = count;
        args.heads = kHeads;
        args.head_dim = head_dim;
        return Apply(launch, args, Rwkv7HeadsCuda, Rwkv7HeadsRef);
      });
    }
  }
}

TEST(CudaMixerRowsTest, Rwkv7OutputsMatchTheReference) {
  for (const int head_dim : {2, 16, 65}) {
    const int n = kHeads * head_dim;
    const auto vector = [&](uint32_t seed) { return RandomFloats(size_t(n), seed, -1, 1.5f); };
    const Rows rows({n, n, 3 * n}, {vector(1), vector(2), vector(3)});  // o, gate, [r | k | v]
    rows.Check([&](const CudaLaunch* launch, const Rows::Arrays& x, const Rows::Arrays& constants,
                   int first, int count) {
      Rwkv7OutputsArgs args;
      args.ld_o = rows.Ld(0);
      args.ld = rows.Ld(2);
      args.o = x[0] + first * args.ld_o;
      args.gate = x[1] + first * args.ld_o;
      args.r = x[2] + first * args.ld;
      args.k = args.r + n;
      args.v = args.k + n;
      args.weight = constants[0];
      args.bias = constants[1];
      args.r_k = constants[2];
      args.eps = 1e-2f;
      args.rows = count;
      args.heads = kHeads;
      args.head_dim = head_dim;
      const auto on_device =
          +[](const CudaLaunch& l, const Rwkv7OutputsArgs& a) { return Rwkv7OutputsCuda(l, a); };
      return Apply(launch, args, on_device, Rwkv7OutputsRef);
    });
  }
}

TEST(CudaMixerRowsTest, Rwkv7OutputsInF16AreTheSameRounded) {
  constexpr int kDim = 20, kN = kHeads * kDim, kLd = kN + kPadding;
  const std::vector<float> o = RandomFloats(size_t(kRows * kLd), 1, -3, 3);
  const DeviceArray<float> rows(o), others(RandomFloats(size_t(kRows * kLd), 2, -3, 3)),
      constants(RandomFloats(size_t(kN), 3));
  const DeviceArray<uint16_t> half(o.size());
  Rwkv7OutputsArgs args;
  args.o = rows.data();
  args.gate = args.r = args.k = args.v = others.data();
  args.weight = args.bias = args.r_k = constants.data();
  args.ld = args.ld_o = kLd;
  args.rows = kRows;
  args.heads = kHeads;
  args.head_dim = kDim;
  ASSERT_EQ(Rwkv7OutputsCuda({}, args, {half.data(), size_t(kLd)}), cudaSuccess);
  EXPECT_TRUE(SameBits(rows.Copy(), o));
  ASSERT_EQ(Rwkv7OutputsCuda({}, args), cudaSuccess);
  const auto written = [](size_t i) { return int(i) % kLd < kN; };
  EXPECT_TRUE(Rounded(half.Copy(), rows.Copy(), written));
}

TEST(CudaMixerRowsTest, MissingArraysAreRefused) {
  RotateHeadsArgs rotate;
  rotate.rows = rotate.heads = rotate.key_heads = rotate.pairs = 1;
  rotate.key_dim = rotate.ld = 2;
  EXPECT_EQ(RotateHeadsCuda({}, rotate), cudaErrorInvalidValue);
  LowerBoundKeysArgs keys;
  keys.rows = keys.n = keys.ld = keys.ld_w = 1;
  EXPECT_EQ(LowerBoundKeysCuda({}, keys), cudaErrorInvalidValue);
  Rwkv7HeadsArgs heads;
  heads.rows = heads.heads = heads.head_dim = heads.ld = heads.ld_w = 1;
  EXPECT_EQ(Rwkv7HeadsCuda({}, heads), cudaErrorInvalidValue);
  Rwkv7OutputsArgs outputs;
  outputs.rows = outputs.heads = outputs.head_dim = outputs.ld = outputs.ld_o = 1;
  EXPECT_EQ(Rwkv7OutputsCuda({}, outputs), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace rivulet::kernels::cuda_mixer_rows_test
