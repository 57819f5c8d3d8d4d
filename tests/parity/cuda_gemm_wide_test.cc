// SPDX-License-Identifier: Apache-2.0
// Products of many rows: the bits of gemm_cuda.h.
#include <limits>

#include "kernels/cuda/gemm/gemm_wide_cuda.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/cuda_matrix.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels::cuda_gemm_wide_test {
namespace {

int RoundUp8(int n) { return (n + 7) / 8 * 8; }

// A product with all that both kinds of kernels need.
struct Product {
  Product(WeightType weight_type, int keys, int columns, int row_count)
      : k(keys),
        n(columns),
        rows(row_count),
        lda(RoundUp8(k) + 8),
        ld_out((n + 1) / 2 * 2 + 2),
        m(weight_type, keys, columns),
        residual(RandomFloats(size_t(rows) * size_t(n), 3)),
        a(PaddedRows(rows, k, lda, 4).values),
        half(HalvesOf(a.Copy())) {}

  // By the kernels of gemm_cuda.h.
  std::vector<float> Expected(const CudaLaunch& launch, Epilogue epilogue,
                              const DeviceArray<int32_t>* gather) const {
    const int count = gather == nullptr ? rows : int(gather->size());
    const DeviceArray<float> out(size_t(count * ld_out));
    CudaGemmArgs args;
    Fill(&args, epilogue, gather);
    args.a = a.data();
    args.out = out.data();
    EXPECT_EQ(GemmCuda(launch, args), cudaSuccess);
    return out.Copy();
  }

  CudaWideGemmArgs Args(Epilogue epilogue, const DeviceArray<int32_t>* gather) const {
    CudaWideGemmArgs args;
    Fill(&args, epilogue, gather);
    args.a = half.data();
    return args;
  }

  // All but a and out.
  template <class Args>
  void Fill(Args* args, Epilogue epilogue, const DeviceArray<int32_t>* gather) const {
    args->w = m.device();
    args->lda = lda;
    args->gather = gather == nullptr ? nullptr : gather->data();
    args->residual = residual.data();
    args->ld_residual = n;
    args->ld_out = ld_out;
    args->rows = gather == nullptr ? rows : int(gather->size());
    args->epilogue = epilogue;
  }

  int k, n, rows, lda, ld_out;
  DeviceMatrix m;
  DeviceArray<float> residual, a;
  DeviceArray<uint16_t> half;
};

void ExpectBitsOfGemm(const Product& product, Epilogue epilogue, const DeviceArray<int32_t>* gather,
                      const CudaLaunch& launch) {
  const std::vector<float> expected = product.Expected(launch, epilogue, gather);
  CudaWideGemmArgs args = product.Args(epilogue, gather);
  const DeviceArray<float> out(expected.size());
  args.out = out.data();
  ASSERT_EQ(CheckWideGemmCuda(args), nullptr);
  ASSERT_EQ(WideGemmCuda(launch, args), cudaSuccess);
  ASSERT_TRUE(SameBits(out.Copy(), expected))
      << "k " << product.k << " n " << product.n << " rows " << product.rows;
  const DeviceArray<uint16_t> half(expected.size());
  args.out = nullptr;
  args.out_half = half.data();
  ASSERT_EQ(WideGemmCuda(launch, args), cudaSuccess);
  const auto written = [&](size_t i) { return int(i) % product.ld_out < product.n; };
  ASSERT_TRUE(Rounded(half.Copy(), expected, written));
}

TEST(CudaWideGemmTest, EveryTileAndEpilogueHasTheBitsOfTheOtherKernels) {
  ASSERT_EQ(PrepareWideGemmCuda(), cudaSuccess);
  const TileGuard guard;
  struct Size {
    int k, n, rows;
  };
  for (const Size& size : {Size{1, 1, 1}, Size{7, 31, 5}, Size{40, 66, 65}, Size{64, 130, 3},
                           Size{96, 24, 130}, Size{257, 129, 20}}) {
    for (const WeightType type : {WeightType::kF16, WeightType::kInt8}) {
      const Product product(type, size.k, size.n, size.rows);
      ForEachOrder([&](const CudaLaunch& launch) {
        for (int tile = -1; tile < kCudaWideGemmTiles; ++tile) {
          SetCudaWideGemmTileForTest(tile);
          ExpectBitsOfGemm(product, Epilogue::kResidual, nullptr, launch);
        }
      });
      for (int tile = 0; tile < kCudaWideGemmTiles; ++tile) {
        SetCudaWideGemmTileForTest(tile);
        for (const Epilogue epilogue : {Epilogue::kNone, Epilogue::kRelu, Epilogue::kGelu}) {
          ExpectBitsOfGemm(product, epilogue, nullptr, {});
        }
      }
    }
  }
}

TEST(CudaWideGemmTest, GatheredRowsHaveTheSameBits) {
  ASSERT_EQ(PrepareWideGemmCuda(), cudaSuccess);
  const DeviceArray<int32_t> gather(std::vector<int32_t>{89, 0, 7, 7, 21, 64, 63, 1});
  for (const WeightType type : {WeightType::kF16, WeightType::kInt8}) {
    const Product product(type, 72, 40, 90);
    ForEachOrder([&](const CudaLaunch& launch) {
      ExpectBitsOfGemm(product, Epilogue::kResidual, &gather, launch);
    });
  }
}

TEST(CudaWideGemmTest, CheckNamesWhatIsWrong) {
  const Product product(WeightType::kF16, 16, 8, 2);
  const DeviceArray<float> out(size_t(2 * product.ld_out));
  CudaWideGemmArgs args = product.Args(Epilogue::kNone, nullptr);
  EXPECT_STREQ(CheckWideGemmCuda(args), "one of out and out_half is set");
  args.out = out.data();
  EXPECT_EQ(CheckWideGemmCuda(args), nullptr);
  args.lda = 20;
  EXPECT_STREQ(CheckWideGemmCuda(args), "a is 16-byte aligned and lda a multiple of 8");
  EXPECT_EQ(WideGemmCuda({}, args), cudaErrorInvalidValue);
  args.lda = 24;
  args.ld_out = 9;
  EXPECT_STREQ(CheckWideGemmCuda(args), "out is 8-byte, out_half 4-byte aligned, and ld_out even");
  args.ld_out = 10;
  args.epilogue = Epilogue::kResidual;
  args.residual = args.out;
  EXPECT_STREQ(CheckWideGemmCuda(args), "out is not residual");
  args.epilogue = Epilogue::kNone;
  args.w.type = WeightType::kF32;
  EXPECT_STREQ(CheckWideGemmCuda(args), "weights are F16 or int8");
}

}  // namespace
}  // namespace rivulet::kernels::cuda_gemm_wide_test
