// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cuda/gemm/gemm_cuda.h"
#include "kernels/cuda/rows/layer_norm_cuda.h"
#include "kernels/half.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/cuda_matrix.h"
#include "tests/support/gemm_case.h"

namespace rivulet::kernels::cuda_gemm_test {
namespace {

constexpr WeightType kTypes[] = {WeightType::kF32, WeightType::kF16, WeightType::kInt8};
int RoundUp4(int n) { return (n + 3) / 4 * 4; }

using Matrix = DeviceMatrix;
using Rows = PaddedRows;

CudaGemmArgs Args(const Matrix& m, const Rows& a, const DeviceArray<float>& device_a,
                  const DeviceArray<float>& out, int ld_out) {
  CudaGemmArgs args;
  args.w = m.device();
  args.a = device_a.data();
  args.lda = a.ld;
  args.rows = a.rows;
  args.out = out.data();
  args.ld_out = ld_out;
  return args;
}

// A weight as the kernels of its type see it.
double Weight(const Matrix& m, int column, int key) {
  const float v = m.w[size_t(column) * size_t(m.k) + size_t(key)];
  return double{m.type == WeightType::kF32 ? v : F16ToF32(F32ToF16(v))};
}

double Expected(const Matrix& m, const Rows& a, int r, int c, Epilogue epilogue, float residual) {
  double sum = double{m.bias[size_t(c)]};
  for (int k = 0; k < m.k; ++k) {
    const float x = a.at(r, k);
    sum += double{m.type == WeightType::kF32 ? x : F16ToF32(F32ToF16(x))} * Weight(m, c, k);
  }
  switch (epilogue) {
    case Epilogue::kNone:
      return sum;
    case Epilogue::kRelu:
      return std::max(sum, 0.0);
    case Epilogue::kGelu:
      return 0.5 * sum * (1 + std::erf(sum / std::sqrt(2.0)));
    case Epilogue::kResidual:
      return sum + double{residual};
    case Epilogue::kScatter:  // of the CPU alone
      break;
  }
  return 0;
}

void CheckShape(WeightType type, int k, int n, int rows, int tile) {
  const Matrix m(type, k, n);
  const Rows a(rows, k, RoundUp4(k) + 4, 3);
  const int ld_out = n + 3;
  const Rows residual(rows, n, ld_out, 4);
  const DeviceArray<float> device_a(a.values), device_residual(residual.values);
  const TileGuard guard;
  SetCudaGemmTileForTest(tile);
  ForEachOrder([&](const CudaLaunch& launch) {
    for (const Epilogue epilogue :
         {Epilogue::kNone, Epilogue::kRelu, Epilogue::kGelu, Epilogue::kResidual}) {
      const DeviceArray<float> out(residual.values.size());
      CudaGemmArgs args = Args(m, a, device_a, out, ld_out);
      args.epilogue = epilogue;
      args.residual = device_residual.data();
      args.ld_residual = ld_out;
      ASSERT_EQ(CheckGemmCuda(args), nullptr);
      ASSERT_EQ(GemmCuda(launch, args), cudaSuccess);
      const std::vector<float> y = out.Copy();
      for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < ld_out; ++c) {
          const float v = y[size_t(r) * size_t(ld_out) + size_t(c)];
          if (c >= n) {
            ASSERT_TRUE(std::isnan(v)) << "a column past n was written";
            continue;
          }
          ASSERT_NEAR(v, Expected(m, a, r, c, epilogue, residual.at(r, c)),
                      4e-6 * (1 + std::sqrt(double(k))))
              << "k " << k << " n " << n << " rows " << rows << " tile " << tile << " at " << r
              << "," << c;
        }
      }
    }
  });
}

TEST(CudaGemmTest, EveryShapeTypeTileAndEpilogueMatchesDouble) {
  for (const WeightType type : kTypes) {
    for (int tile = 0; tile < kCudaGemmTiles; ++tile) {
      CheckShape(type, 1, 1, 1, tile);
      CheckShape(type, 3, 5, 2, tile);
      CheckShape(type, 7, 31, 5, tile);
      CheckShape(type, 16, 48, 17, tile);
      CheckShape(type, 33, 65, 3, tile);
      CheckShape(type, 100, 130, 66, tile);
      CheckShape(type, 257, 40, 4, tile);   // one past the chunk of the smallest tile
      CheckShape(type, 600, 24, 18, tile);  // several chunks in every tile
    }
  }
}

TEST(CudaGemmTest, ARowHasTheSameBitsAtEveryRowCountPlaceAndTile) {
  constexpr int kK = 300, kN = 72, kRows = 70;
  const TileGuard guard;
  for (const WeightType type : kTypes) {
    const Matrix m(type, kK, kN);
    const Rows a(kRows, kK, kK, 5);
    std::vector<float> reference;
    ForEachOrder([&](const CudaLaunch& launch) {
      for (int tile = -1; tile < kCudaGemmTiles; ++tile) {
        SetCudaGemmTileForTest(tile);
        for (const int rows : {kRows, 1, 15, 33}) {
          for (const int first : {0, kRows - rows}) {
            const Rows all = a;
            const std::vector<float> part(all.values.begin() + first * kK,
                                          all.values.begin() + (first + rows) * kK);
            const DeviceArray<float> device_a(part), out(size_t(rows) * kN);
            CudaGemmArgs args = Args(m, a, device_a, out, kN);
            args.rows = rows;
            args.epilogue = Epilogue::kGelu;
            ASSERT_EQ(GemmCuda(launch, args), cudaSuccess);
            const std::vector<float> y = out.Copy();
            if (reference.empty()) reference = y;
            const std::vector<float> expected(reference.begin() + first * kN,
                                              reference.begin() + (first + rows) * kN);
            ASSERT_TRUE(SameBits(y, expected)) << "tile " << tile << " rows " << rows;
          }
        }
      }
    });
  }
}

// Inputs that F16 cannot hold count as its largest value; an infinity stays a fault.
TEST(CudaGemmTest, F16InputsEndAtTheLargest) {
  constexpr int kK = 40, kN = 24;
  const TileGuard guard;
  const Matrix m(WeightType::kF16, kK, kN);
  const Rows ends(3, kK, kK, 5);
  const auto multiply = [&](int tile, float at_0, float at_1) {
    SetCudaGemmTileForTest(tile);
    Rows a = ends;
    a.at(1, 7) = at_0, a.at(1, 8) = at_1;
    const DeviceArray<float> device_a(a.values), out(size_t{3} * kN);
    EXPECT_EQ(GemmCuda({}, Args(m, a, device_a, out, kN)), cudaSuccess);
    return out.Copy();
  };
  const float infinity = std::numeric_limits<float>::infinity();
  for (int tile = 0; tile < kCudaGemmTiles; ++tile) {
    const std::vector<float> largest = multiply(tile, 65504, -65504);
    EXPECT_TRUE(SameBits(multiply(tile, 3e38f, -65520), largest));
    const std::vector<float> fault = multiply(tile, 1, infinity);
    for (int c = 0; c < kN; ++c) {
      EXPECT_TRUE(std::isfinite(largest[size_t(kN + c)]));
      EXPECT_TRUE(std::isfinite(fault[size_t(c)])) << "another row";
      EXPECT_FALSE(std::isfinite(fault[size_t(kN + c)]));
    }
  }
}

TEST(CudaGemmTest, Float32ProductsHaveTheBitsOfTheCpu) {
  for (const auto& shape : {std::pair{7, 33}, {256, 96}, {130, 30}}) {
    const int k = shape.first, n = shape.second;
    constexpr int kRows = 5;
    const Matrix m(WeightType::kF32, k, n);
    const Rows a(kRows, k, RoundUp4(k), 6);
    std::vector<float> cpu(size_t(kRows) * size_t(PaddedColumns(n)));
    // The bias of both is of the same seed.
    GemmCpu(HostMatrix(WeightType::kF32, k, n, m.w)
                .Args(a.values, a.ld, kRows, cpu.data(), Epilogue::kRelu));
    const DeviceArray<float> device_a(a.values);
    ForEachOrder([&](const CudaLaunch& launch) {
      const DeviceArray<float> out(size_t(kRows) * size_t(n));
      CudaGemmArgs args = Args(m, a, device_a, out, n);
      args.epilogue = Epilogue::kRelu;
      ASSERT_EQ(GemmCuda(launch, args), cudaSuccess);
      const std::vector<float> y = out.Copy();
      for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < n; ++c) {
          ASSERT_EQ(y[size_t(r * n + c)], cpu[size_t(r * PaddedColumns(n) + c)]) << r << "," << c;
        }
      }
    });
  }
}

// Integers, extremes among them, are what F16 weights f16(q s) are.
TEST(CudaGemmTest, Int8ProductsHaveTheBitsOfF16Weights) {
  constexpr int kK = 333, kN = 45, kRows = 19;
  std::vector<float> w = RandomFloats(size_t{kN} * kK, 1, -0.3f, 0.3f);
  for (int i = 0; i < 4 * kK; ++i) w[size_t(i)] = i % 3 == 0 ? -3e-6f : 3e-6f;  // subnormal
  const Matrix int8(WeightType::kInt8, kK, kN, w), f16(WeightType::kF16, kK, kN, int8.w);
  const Rows a(kRows, kK, RoundUp4(kK), 6);
  const DeviceArray<float> device_a(a.values);
  const TileGuard guard;
  for (int tile = 0; tile < kCudaGemmTiles; ++tile) {
    SetCudaGemmTileForTest(tile);
    const DeviceArray<float> out(size_t{kRows} * kN), expected(size_t{kRows} * kN);
    ASSERT_EQ(GemmCuda({}, Args(int8, a, device_a, out, kN)), cudaSuccess);
    ASSERT_EQ(GemmCuda({}, Args(f16, a, device_a, expected, kN)), cudaSuccess);
    ASSERT_TRUE(SameBits(out.Copy(), expected.Copy())) << "tile " << tile;
  }
}

TEST(CudaGemmTest, NormAndGatherInsideTheProductGiveTheBitsOfSeparateKernels) {
  const TileGuard guard;
  for (const WeightType type : kTypes) {
    for (const auto& shape : {std::pair{45, 20}, {256, 72}, {301, 9}}) {
      const int k = shape.first, n = shape.second;
      const Matrix m(type, k, n);
      const Rows a(40, k, RoundUp4(k), 7), residual(40, n, RoundUp4(n), 8);
      const DeviceArray<float> device_a(a.values), device_residual(residual.values);
      const DeviceArray<float> weight(RandomFloats(size_t(k), 9, 0.5f, 1.5f)),
          bias(RandomFloats(size_t(k), 10));
      const std::vector<int32_t> gather = {39, 0,  7,  7,  21, 3,  38, 11, 2, 1, 0,
                                           30, 31, 32, 33, 34, 35, 36, 37, 5, 6, 8};
      const DeviceArray<int32_t> device_gather(gather);
      const int rows = int(gather.size());
      ForEachOrder([&](const CudaLaunch& launch) {
        // Separately: gathered rows, normalised, multiplied.
        std::vector<float> picked, picked_residual;
        for (const int r : gather) {
          picked.insert(picked.end(), a.values.begin() + r * a.ld,
                        a.values.begin() + (r + 1) * a.ld);
          picked_residual.insert(picked_residual.end(), residual.values.begin() + r * residual.ld,
                                 residual.values.begin() + (r + 1) * residual.ld);
        }
        const DeviceArray<float> device_picked(picked), device_picked_residual(picked_residual);
        const DeviceArray<float> normed(picked.size());
        LayerNormArgs norm{
            device_picked.data(), normed.data(), weight.data(), bias.data(), rows, k, a.ld, 1e-5f};
        ASSERT_EQ(LayerNormCuda(launch, norm), cudaSuccess);
        const DeviceArray<float> expected(size_t(rows) * size_t(n));
        CudaGemmArgs args = Args(m, a, normed, expected, n);
        args.rows = rows;
        args.epilogue = Epilogue::kResidual;
        args.residual = device_picked_residual.data();
        args.ld_residual = residual.ld;
        ASSERT_EQ(GemmCuda(launch, args), cudaSuccess);
        const std::vector<float> normed_rows = normed.Copy();

        for (int tile = 0; tile < kCudaGemmTiles; ++tile) {
          SetCudaGemmTileForTest(tile);
          const DeviceArray<float> out(size_t(rows) * size_t(n)), norm_out(picked.size());
          args = Args(m, a, device_a, out, n);
          args.rows = rows;
          args.gather = device_gather.data();
          args.epilogue = Epilogue::kResidual;
          args.residual = device_residual.data();
          args.ld_residual = residual.ld;
          args.norm_weight = weight.data();
          args.norm_bias = bias.data();
          args.norm_eps = 1e-5f;
          args.norm_out = norm_out.data();
          args.ld_norm_out = a.ld;
          ASSERT_EQ(CheckGemmCuda(args), nullptr);
          ASSERT_EQ(GemmCuda(launch, args), cudaSuccess);
          ASSERT_TRUE(SameBits(out.Copy(), expected.Copy())) << "k " << k << " tile " << tile;
          const std::vector<float> fused = norm_out.Copy();
          for (int r = 0; r < rows; ++r) {
            for (int c = 0; c < k; ++c) {
              ASSERT_EQ(fused[size_t(r * a.ld + c)], normed_rows[size_t(r * a.ld + c)]);
            }
            for (int c = k; c < a.ld; ++c) ASSERT_TRUE(std::isnan(fused[size_t(r * a.ld + c)]));
          }
        }
        SetCudaGemmTileForTest(-1);
      });
    }
  }
}

TEST(CudaGemmTest, CheckNamesWhatIsWrong) {
  const Matrix m(WeightType::kF32, 4, 4);
  const Rows a(1, 4, 4, 12);
  const DeviceArray<float> device_a(a.values), out(4);
  CudaGemmArgs args = Args(m, a, device_a, out, 4);
  EXPECT_EQ(CheckGemmCuda(args), nullptr);
  args.a = device_a.data() + 1;
  EXPECT_STREQ(CheckGemmCuda(args), "a is 16-byte aligned and lda a multiple of 4");
  EXPECT_EQ(GemmCuda({}, args), cudaErrorInvalidValue);
  args = Args(m, a, device_a, out, 4);
  args.epilogue = Epilogue::kResidual;
  EXPECT_STREQ(CheckGemmCuda(args), "residual [.., n] must be set");
  args = Args(m, a, device_a, out, 3);
  EXPECT_STREQ(CheckGemmCuda(args), "lda >= k and ld_out >= n");
  args = Args(m, a, device_a, out, 4);
  args.rows = 0;
  EXPECT_EQ(GemmCuda({}, args), cudaSuccess);
}

}  // namespace
}  // namespace rivulet::kernels::cuda_gemm_test
