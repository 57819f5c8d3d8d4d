// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm.h"

#include <algorithm>

#include "tests/support/gemm_case.h"

namespace rivulet::kernels::gemm_test {
namespace {

using Matrix = HostMatrix;

GemmArgs Args(const Matrix& m, const std::vector<float>& x, int rows, float* y, Epilogue epilogue) {
  return m.Args(x, m.packed.k, rows, y, epilogue);
}

TEST(GemmTest, EveryShapeTypeAndEpilogueMatchesTheReference) {
  ForEachCpuTarget([](const std::string& target) {
    for (const auto& [k, n] : {std::pair{1, 1},
                               {7, 31},
                               {16, 32},
                               {33, 65},
                               {100, 77},
                               {256, 160},
                               {45, 256},
                               {301, 65}}) {
      for (const WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kBF16}) {
        const Matrix m(type, k, n);
        for (const Epilogue epilogue : {Epilogue::kNone, Epilogue::kRelu, Epilogue::kGelu,
                                        Epilogue::kResidual, Epilogue::kScatter}) {
          for (const int rows : {1, 2, 3, 4, 5, 12, 13, 31}) {
            const std::vector<float> x = RandomFloats(size_t(rows) * size_t(k), 3);
            const std::vector<float> before =
                RandomFloats(size_t(rows) * size_t(PaddedColumns(n)), 4);
            GuardedFloats y(before);
            std::vector<float> expected = before;
            GemmCpu(Args(m, x, rows, y.data(), epilogue));
            GemmRef(Args(m, x, rows, expected.data(), epilogue));
            ASSERT_TRUE(y.Intact()) << target;
            for (int r = 0; r < rows; ++r) {
              for (int c = 0; c < n; ++c) {
                const size_t at = size_t(r) * size_t(PaddedColumns(n)) + size_t(c);
                ASSERT_NEAR(y[at], expected[at], 4e-6 * (1 + std::sqrt(double(k))))
                    << target << " k " << k << " n " << n << " rows " << rows << " at " << r << ","
                    << c;
              }
            }
          }
        }
      }
    }
  });
}

TEST(GemmTest, ARowHasTheSameBitsAtEveryRowCountPlacePanelSplitAndVectorWidth) {
  constexpr int kK = 300, kN = 160, kRows = 256;  // several parts of k, groups of blocks
  const std::vector<float> x = RandomFloats(size_t(kRows) * kK, 5);
  for (const WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kBF16}) {
    const Matrix m(type, kK, kN);
    std::vector<float> reference;
    ForEachCpuTarget([&](const std::string& target) {
      if (!CpuTargetFuses()) return;  // rounds every product: another numerics id
      std::vector<float> all(size_t(kRows) * kN);
      GemmCpu(Args(m, x, kRows, all.data(), Epilogue::kGelu));
      if (reference.empty()) reference = all;
      ASSERT_TRUE(SameBits(all, reference)) << target;
      for (int rows = 1; rows < kRows; rows += rows < 40 ? 1 : 37) {
        for (const int first : {0, kRows - rows}) {
          const std::vector<float> part(x.begin() + first * kK, x.begin() + (first + rows) * kK);
          std::vector<float> y(size_t(rows) * kN);
          for (int panel = 0; panel < NumPanels(kN); panel += 2) {  // as two threads would split
            GemmArgs args = Args(m, part, rows, y.data(), Epilogue::kGelu);
            args.panel_begin = panel;
            args.panel_end = std::min(panel + 2, NumPanels(kN));
            GemmCpu(args);
          }
          const std::vector<float> expected(reference.begin() + first * kN,
                                            reference.begin() + (first + rows) * kN);
          ASSERT_TRUE(SameBits(y, expected)) << target << " rows " << rows << " from " << first;
        }
      }
    });
  }
}

TEST(GemmTest, LeavingOutInputsThatAreZeroChangesNoBit) {
  constexpr int kK = 100, kN = 70;
  for (const WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kBF16}) {
    Matrix m(type, kK, kN);
    std::fill(m.bias.begin(), m.bias.end(), 0.0f);
    for (const int rows : {1, 2, 3, kMostSparseRows}) {
      for (const int every : {1, 2, 5, 100, 1000}) {  // 1000: all are 0
        std::vector<float> x(size_t(rows * kK));
        for (size_t i = 0; i < x.size(); ++i) {
          const float value = 0.1f * float(i % 7) - 0.3f;
          x[i] = i % size_t(every) == size_t(every / 2) ? value : i % 2 == 0 ? 0.0f : -0.0f;
        }
        std::vector<int32_t> inputs(kK);
        const int count = FindNonzero(x.data(), rows, kK, kK, inputs.data());
        for (int i = 0; i < kK; ++i) {
          bool zero = true;
          for (int r = 0; r < rows; ++r) zero = zero && x[size_t(r * kK + i)] == 0;
          EXPECT_NE(std::count(inputs.begin(), inputs.begin() + count, i) == 1, zero);
        }
        ForEachCpuTarget([&](const std::string& target) {
          std::vector<float> y = RandomFloats(size_t(rows * PaddedColumns(kN)), 9);
          std::vector<float> expected = y;
          GemmCpu(Args(m, x, rows, expected.data(), Epilogue::kResidual));
          GemmArgs args = Args(m, x, rows, y.data(), Epilogue::kResidual);
          args.nonzero = {inputs.data(), count};
          SparseGemmCpu(args);
          ASSERT_TRUE(SameBits(y, expected)) << target << " rows " << rows << " of " << every;
        });
      }
    }
  }
}

TEST(GemmTest, SeveralMatricesSideBySideEqualEachAlone) {
  constexpr int kK = 20;
  const std::vector<float> x = RandomFloats(kK, 6);
  const std::vector<float> w = RandomFloats(size_t(50) * kK, 7);
  std::vector<float> panels(PackedSize(WeightType::kF32, kK, 50) / sizeof(float)), bias(64), y(64);
  ASSERT_TRUE(PackWeights(WeightType::kF32, w.data(), 17, kK, 0, panels.data()));
  ASSERT_TRUE(PackWeights(WeightType::kF32, w.data() + 17 * kK, 33, kK, 17, panels.data()));
  GemmArgs args;
  args.w = {WeightType::kF32, kK, 50, panels.data()};
  args.bias = bias.data();
  args.x = x.data();
  args.y = y.data();
  args.rows = 1;
  args.ldx = kK;
  args.ldy = 64;
  args.panel_end = 2;
  GemmRef(args);
  for (int c = 0; c < 50; ++c) {
    double sum = 0;
    for (int i = 0; i < kK; ++i) sum += double{x[size_t(i)]} * double{w[size_t(c * kK + i)]};
    EXPECT_NEAR(y[size_t(c)], sum, 1e-5);
  }
}

TEST(GemmTest, PackingSaysWhenAWeightDoesNotFitSixteenBits) {
  std::vector<float> panels(32);
  const float large = 70000.0f;
  EXPECT_FALSE(PackWeights(WeightType::kF16, &large, 1, 1, 0, panels.data()));
  EXPECT_TRUE(PackWeights(WeightType::kBF16, &large, 1, 1, 0, panels.data()));
}

}  // namespace
}  // namespace rivulet::kernels::gemm_test
