// SPDX-License-Identifier: Apache-2.0
#include "kernels/quantized.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "kernels/half.h"
#include "tests/support/gemm_case.h"

namespace rivulet::kernels::quantized_test {
namespace {

constexpr WeightType kTypes[] = {WeightType::kInt8,       WeightType::kInt4,  WeightType::kInt5,
                                 WeightType::kInt5Signed, WeightType::kQ4K,   WeightType::kQ5K,
                                 WeightType::kQ6K,        WeightType::kIQ4NL, WeightType::kIQ4XS};
constexpr WeightType kRounded[] = {WeightType::kInt8, WeightType::kInt4, WeightType::kQ4K};

// A group of a type that is not made by rounding: its integers from those of the nearest group of
// kInt4, 0 to 15, and all values that u and v can have.
QuantizedGroup OtherGroup(WeightType type, const QuantizedGroup& nearest, int c, int g) {
  const QuantizedFormat format = FormatOf(type);
  QuantizedGroup group = nearest;
  for (uint8_t& q : group.q) {
    if (format.table) q = uint8_t(kTableValues[q]);
    if (format.bits == 5) q = uint8_t(2 * q + q % 2 - (format.minimum ? 0 : 16));
    if (format.bits == 6) q = uint8_t(4 * q + q % 4 - 32);
  }
  if (!format.minimum) group.e = 0;
  if (format.groups == 1) return group;
  for (int half = 0; half < 2; ++half) {
    const int u = 7 * c + 5 * g + 3 * half * (format.halves - 1);
    group.u[half] = int8_t(format.minimum ? u % 64 : u % 256 - 128);
  }
  group.v = format.minimum ? uint8_t((3 * c + 11 * g) % 64) : uint8_t{1};
  return group;
}

void PackOther(WeightType type, const float* w, int n, int k, void* panels) {
  std::vector<float> nearest(PackedSize(WeightType::kInt4, k, n) / sizeof(float));
  ASSERT_TRUE(PackWeights(WeightType::kInt4, w, n, k, 0, nearest.data()));
  for (int c = 0; c < n; ++c) {
    QuantizedGroup first;
    for (int g = 0; g < QuantizedGroups(k); ++g) {
      QuantizedGroup group = UnpackGroup({WeightType::kInt4, k, n, nearest.data()}, c, g);
      if (g % FormatOf(type).groups == 0) first = group;
      group.d = first.d;
      group.e = first.e;
      PackGroup(type, OtherGroup(type, group, c, g), k, c, g, panels);
    }
  }
}

bool IsOther(WeightType type) {
  return IsQuantized(type) && std::count(std::begin(kRounded), std::end(kRounded), type) == 0;
}

// `w` [n, k].
struct Matrix : HostMatrix {
  Matrix(WeightType type, int k, int n, const std::vector<float>& w)
      : HostMatrix(type, k, n, w, IsOther(type) ? PackOther : nullptr) {}
};

std::vector<float> Quantized(const std::vector<float>& x, int rows, int k,
                             void (*quantize)(const QuantizeRowsArgs&) = QuantizeRowsRef) {
  GuardedFloats y(std::vector<float>(size_t(rows) * QuantizedRowLayout(k).bytes / sizeof(float)));
  quantize({x.data(), y.data(), rows, k, k});
  EXPECT_TRUE(y.Intact());
  return y.Copy();
}

GemmArgs Args(const Matrix& m, const void* x, int rows, float* y, Epilogue epilogue) {
  GemmArgs args = m.Args({}, 0, rows, y, epilogue);
  args.quantized_x = x;
  return args;
}

// Some targets round the product of a multiply-add: of those the sums are near, not equal.
void ExpectOutputs(const std::vector<float>& y, const std::vector<float>& expected, int rows, int n,
                   bool same, const std::string& where) {
  const auto ld = size_t(PaddedColumns(n));
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < n; ++c) {
      const size_t at = size_t(r) * ld + size_t(c);
      ASSERT_TRUE(!same || y[at] == expected[at]) << where << " at " << r << "," << c;
      ASSERT_NEAR(y[at], expected[at], 2e-4 * (1 + std::fabs(expected[at]))) << where;
    }
  }
}

TEST(QuantizedRowsTest, EveryTargetRoundsAsTheReference) {
  for (const int k : {1, 5, 32, 33, 100, 256}) {
    std::vector<float> x = RandomFloats(size_t(9 * k), 1, -3, 3);
    std::fill_n(x.begin(), k, 0.0f);                         // scale 0
    for (int i = 0; i < k; ++i) x[size_t(k + i)] *= 1e-32f;  // below 2^-100: as zeros
    for (int i = 0; i < k; ++i) x[size_t(2 * k + i)] = i % 2 == 0 ? 5.0f : -5.0f;    // extremes
    for (int i = 0; i < k; ++i) x[size_t(3 * k + i)] = 0.5f * float(i % 255 - 127);  // ties
    x[size_t(4 * k)] = std::numeric_limits<float>::infinity();
    x[size_t(5 * k + k - 1)] = std::nanf("");
    x[size_t(6 * k + k / 2)] = std::numeric_limits<float>::max();
    const std::vector<float> expected = Quantized(x, 9, k);
    ForEachCpuTarget([&](const std::string& target) {
      ASSERT_TRUE(SameBits(Quantized(x, 9, k, QuantizeRowsCpu), expected)) << target << " k " << k;
    });
  }
}

TEST(QuantizedRowsTest, AGroupIsWithinHalfAStepAndMarksWhatIsNotFinite) {
  constexpr int kK = 64;
  std::vector<float> x = RandomFloats(2 * kK, 1, -3, 3);
  x[kK + 40] = -std::numeric_limits<float>::infinity();
  const std::vector<float> rows = Quantized(x, 2, kK);
  const QuantizedRowLayout layout(kK);
  const auto* row = reinterpret_cast<const uint8_t*>(rows.data());
  QuantizedScale scales[2];
  std::memcpy(scales, row + layout.scales, sizeof(scales));
  for (int i = 0; i < kK; ++i) {
    const float step = scales[i / 32].scale;
    EXPECT_NEAR(x[size_t(i)], step * float(static_cast<int8_t>(row[i])), step * 0.501f);
  }
  std::memcpy(scales, row + layout.bytes + layout.scales, sizeof(scales));
  EXPECT_TRUE(std::isfinite(scales[0].scale));
  EXPECT_TRUE(std::isnan(scales[1].scale));
  EXPECT_TRUE(std::isnan(scales[1].offset));
}

TEST(QuantizedGemmTest, EveryTargetRowCountAndPanelSplitHasTheBitsOfTheReference) {
  for (const WeightType type : kTypes) {
    for (const auto& [k, n] :
         {std::pair{1, 1}, {31, 33}, {32, 32}, {100, 77}, {256, 160}, {768, 33}}) {
      if (FormatOf(type).groups > 1 && k % FormatOf(type).inputs() != 0) continue;
      const Matrix m(type, k, n, RandomFloats(size_t(n) * size_t(k), 1, -0.2f, 0.3f));
      constexpr int kMost = 29;
      const std::vector<float> x = Quantized(RandomFloats(size_t(kMost * k), 3), kMost, k);
      for (const Epilogue epilogue :
           {Epilogue::kNone, Epilogue::kRelu, Epilogue::kResidual, Epilogue::kScatter}) {
        std::vector<float> expected = RandomFloats(size_t(kMost * PaddedColumns(n)), 4);
        const std::vector<float> before = expected;
        QuantizedGemmRef(Args(m, x.data(), kMost, expected.data(), epilogue));
        ForEachCpuTarget([&](const std::string& target) {
          for (const int rows : {1, 2, 3, 4, 5, 6, 7, 8, 11, kMost}) {
            GuardedFloats y(size_t(rows * PaddedColumns(n)));
            std::copy_n(before.begin(), size_t(rows * PaddedColumns(n)), y.data());
            for (int panel = 0; panel < NumPanels(n); ++panel) {
              GemmArgs args = Args(m, x.data(), rows, y.data(), epilogue);
              args.panel_begin = panel;
              args.panel_end = panel + 1;
              GemmCpu(args);
            }
            ASSERT_TRUE(y.Intact());
            ExpectOutputs(y.Copy(), expected, rows, n, CpuTargetFuses(),
                          target + " rows " + std::to_string(rows));
          }
        });
      }
    }
  }
}

// Sums of products of the largest integers are where instructions that saturate would differ.
TEST(QuantizedGemmTest, GroupsOfExtremesAreExact) {
  constexpr int kK = 256, kN = 32, kRows = 4;
  for (const WeightType type : kTypes) {
    std::vector<float> w(kN * kK), values(kRows * kK);
    for (int c = 0; c < kN; ++c) {
      for (int i = 0; i < kK; ++i) {
        const bool high = c < 8 || (c < 16 ? i % 2 == 0 : c < 24 ? i % 4 < 2 : i % 32 == 0);
        w[size_t(c * kK + i)] = high ? 1.0f : -1.0f;
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kK; ++i) {
        values[size_t(r * kK + i)] = r == 0 || (r == 1 ? i % 2 == 0 : r == 2 && i % 4 < 2) ? 2 : -2;
      }
    }
    const Matrix m(type, kK, kN, w);
    const std::vector<float> x = Quantized(values, kRows, kK);
    std::vector<float> expected(kRows * kN);
    QuantizedGemmRef(Args(m, x.data(), kRows, expected.data(), Epilogue::kNone));
    // 1 and -1 are rounded within 2^-10 of themselves, 2 and -2 exactly.
    if (type == WeightType::kInt8 || type == WeightType::kInt4) {
      EXPECT_NEAR(expected[0], m.bias[0] + 2 * kK, 1);
    }
    ForEachCpuTarget([&](const std::string& target) {
      std::vector<float> y(kRows * kN);
      GemmCpu(Args(m, x.data(), kRows, y.data(), Epilogue::kNone));
      ExpectOutputs(y, expected, kRows, kN, CpuTargetFuses(), target);
    });
  }
}

TEST(QuantizedGemmTest, ARowThatIsNotFiniteHasNoFiniteOutput) {
  constexpr int kN = 33;
  for (const WeightType type : kTypes) {
    const int kK = FormatOf(type).groups > 1 ? 256 : 40;
    const Matrix m(type, kK, kN, RandomFloats(size_t(kN * kK), 1));
    std::vector<float> values = RandomFloats(size_t(2 * kK), 3);
    values[size_t(kK - 1)] = std::numeric_limits<float>::infinity();
    ForEachCpuTarget([&](const std::string& target) {
      const std::vector<float> x = Quantized(values, 2, kK, QuantizeRowsCpu);
      std::vector<float> y(2 * 64);
      GemmCpu(Args(m, x.data(), 2, y.data(), Epilogue::kNone));
      for (int c = 0; c < kN; ++c) {
        EXPECT_TRUE(std::isnan(y[size_t(c)])) << target;
        EXPECT_TRUE(std::isfinite(y[size_t(64 + c)])) << target;
      }
    });
  }
}

TEST(QuantizedWeightsTest, EachIsWithinHalfAStepOfTheGiven) {
  constexpr int kK = 100, kN = 40;
  for (const float size : {1e-6f, 1e-3f, 1.0f, 1000.0f}) {
    const std::vector<float> w = RandomFloats(kN * kK, 1, -size, 0.7f * size);
    for (const WeightType type : {WeightType::kInt8, WeightType::kInt4}) {
      const Matrix m(type, kK, kN, w);
      const float step = type == WeightType::kInt8 ? size / 127 : 1.7f * size / 15;
      for (int c = 0; c < kN; ++c) {
        std::vector<float> column(kK);
        UnpackColumn(m.packed, c, column.data());
        for (int i = 0; i < kK; ++i) {
          // F16 has steps of 2^-24 below 2^-14, and 11 bits above.
          EXPECT_NEAR(
              column[size_t(i)], w[size_t(c * kK + i)],
              0.51f * step + 1e-3f * size + 0x1p-24f * (type == WeightType::kInt8 ? 64 : 16));
        }
      }
    }
  }
}

TEST(QuantizedWeightsTest, AGroupIsUnpackedAsItWasPacked) {
  constexpr int kK = 256, kN = 40;
  for (const WeightType type : kTypes) {
    const QuantizedFormat format = FormatOf(type);
    std::vector<float> panels(PackedSize(type, kK, kN) / sizeof(float));
    const PackedMatrix w = {type, kK, kN, panels.data()};
    QuantizedGroup groups[kK / kQuantizedInputs];
    for (int g = 0; g < kK / kQuantizedInputs; ++g) {
      QuantizedGroup nearest = {0.5f, format.minimum ? 1.25f : 0};
      for (int i = 0; i < kQuantizedInputs; ++i) nearest.q[i] = uint8_t((i * 5 + g) % 16);
      groups[g] = OtherGroup(type, nearest, 37, g);
      PackGroup(type, groups[g], kK, 37, g, panels.data());
    }
    std::vector<float> column(kK), other(kK);
    UnpackColumn(w, 37, column.data());
    for (int g = 0; g < kK / kQuantizedInputs; ++g) {
      EXPECT_TRUE(groups[g] == UnpackGroup(w, 37, g)) << int(type) << " group " << g;
      for (int i = 0; i < kQuantizedInputs; ++i) {
        const float q = float(static_cast<int8_t>(groups[g].q[i]));
        EXPECT_EQ(column[size_t(g * kQuantizedInputs + i)],
                  std::fma(groups[g].Scale(i / 16), q, -groups[g].Minimum()));
      }
    }
    UnpackColumn(w, 36, other.data());
    EXPECT_TRUE(std::all_of(other.begin(), other.end(), [](float x) { return x == 0; }));
  }
}

TEST(QuantizedWeightsTest, AProductIsNearThatOfTheGivenMatrix) {
  constexpr int kK = 256, kN = 64, kRows = 3;
  const std::vector<float> w = RandomFloats(kN * kK, 1), values = RandomFloats(kRows * kK, 2);
  Matrix exact(WeightType::kF32, kK, kN, w);
  std::vector<float> expected(kRows * kN);
  GemmArgs args = Args(exact, nullptr, kRows, expected.data(), Epilogue::kNone);
  args.x = values.data();
  args.ldx = kK;
  GemmRef(args);
  for (const auto& [type, tolerance] :
       {std::pair{WeightType::kInt8, 0.2}, {WeightType::kInt4, 2.0}, {WeightType::kQ4K, 2.0}}) {
    const Matrix m(type, kK, kN, w);
    const std::vector<float> x = Quantized(values, kRows, kK);
    std::vector<float> y(kRows * kN);
    GemmCpu(Args(m, x.data(), kRows, y.data(), Epilogue::kNone));
    for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], expected[i], tolerance);
  }
}

// Relative to the weights, root mean square.
double RoundingError(WeightType type, const std::vector<float>& w, int k) {
  const int n = int(w.size()) / k;
  const Matrix m(type, k, n, w);
  std::vector<float> column(size_t(k), 0.0f);
  double squares = 0, errors = 0;
  for (size_t i = 0; i < w.size(); ++i) {
    if (i % size_t(k) == 0) UnpackColumn(m.packed, int(i) / k, column.data());
    const double error = double{column[i % size_t(k)]} - double{w[i]};
    errors += error * error;
    squares += double{w[i]} * double{w[i]};
  }
  return std::sqrt(errors / squares);
}

TEST(QuantizedWeightsTest, NormalWeightsAreNearerInTheFormOfQ4KThanInInt4) {
  constexpr int kK = 512;
  std::mt19937 random(1);
  for (const float size : {1e-3f, 1.0f, 100.0f}) {
    std::normal_distribution<float> normal(0, size);
    std::vector<float> w(kK * 32);
    for (float& x : w) x = normal(random);
    const double int4 = RoundingError(WeightType::kInt4, w, kK);
    EXPECT_LT(RoundingError(WeightType::kQ4K, w, kK), 0.95 * int4) << size;
    EXPECT_LT(int4, 0.085);
  }
  // Weights of one sign, and groups of zeros.
  std::vector<float> w = RandomFloats(kK * 32, 1, 0, 1);
  for (size_t i = 0; i < w.size(); i += 64) std::fill_n(w.begin() + std::ptrdiff_t(i), 32, 0.0f);
  EXPECT_LT(RoundingError(WeightType::kQ4K, w, kK), 0.04);
  for (float& x : w) x = -x;
  EXPECT_LT(RoundingError(WeightType::kQ4K, w, kK), 0.04);
}

TEST(QuantizedWeightsTest, PackingSaysWhenAScaleDoesNotFitSixteenBits) {
  std::vector<float> panels(PackedSize(WeightType::kInt8, 1, 1) / sizeof(float));
  const float large = 70000.0f, largest = 9e6f;
  EXPECT_TRUE(PackWeights(WeightType::kInt8, &large, 1, 1, 0, panels.data()));
  EXPECT_FALSE(PackWeights(WeightType::kInt8, &largest, 1, 1, 0, panels.data()));
  EXPECT_FALSE(PackWeights(WeightType::kInt4, &large, 1, 1, 0, panels.data()));
  for (const float beyond : {1e8f, -1e8f, 1e30f, std::numeric_limits<float>::max()}) {
    std::vector<float> w(256, 1.0f), blocks(PackedSize(WeightType::kQ4K, 256, 1) / sizeof(float));
    EXPECT_TRUE(PackWeights(WeightType::kQ4K, w.data(), 1, 256, 0, blocks.data()));
    w[77] = beyond;
    EXPECT_FALSE(PackWeights(WeightType::kQ4K, w.data(), 1, 256, 0, blocks.data())) << beyond;
  }
}

}  // namespace
}  // namespace rivulet::kernels::quantized_test
