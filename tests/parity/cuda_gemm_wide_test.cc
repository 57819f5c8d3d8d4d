// SPDX-License-Identifier: Apache-2.0
// Products of many rows: the bits of gemm_cuda.h.
#include <algorithm>
#include <limits>

#include "kernels/cuda/gemm/gemm_wide_cuda.h"
#include "kernels/half.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/cuda_matrix.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {
namespace {

int RoundUp8(int n) { return (n + 7) / 8 * 8; }

class WideTileGuard {
 public:
  ~WideTileGuard() { SetCudaWideGemmTileForTest(-1); }
};

// A product with all that both kinds of kernels need.
struct Product {
  Product(WeightType weight_type, int keys, int columns, int row_count)
      : type(weight_type),
        k(keys),
        n(columns),
        rows(row_count),
        lda(RoundUp8(k) + 8),
        ld_out((n + 1) / 2 * 2 + 2),
        packed(Packed()),
        bias(RandomFloats(size_t(n), 2)),
        residual(RandomFloats(size_t(rows) * size_t(n), 3)),
        a(Rows()),
        half(Halves()) {}

  std::vector<uint8_t> Packed() const {
    std::vector<float> w = RandomFloats(size_t(n) * size_t(k), 1, -0.3f, 0.3f);
    return PackedForCuda(type, k, n, w);
  }
  // NaN in the padding: it must not count.
  std::vector<float> Rows() const {
    const std::vector<float> random = RandomFloats(size_t(rows) * size_t(k), 4);
    std::vector<float> values(size_t(rows * lda), std::numeric_limits<float>::quiet_NaN());
    for (int r = 0; r < rows; ++r) {
      std::copy_n(random.begin() + r * k, k, values.begin() + r * lda);
    }
    return values;
  }
  std::vector<uint16_t> Halves() const {
    std::vector<uint16_t> halves;
    for (const float v : Rows()) halves.push_back(F32ToF16(v));
    return halves;
  }

  // By the kernels of gemm_cuda.h.
  std::vector<float> Expected(const CudaLaunch& launch, Epilogue epilogue,
                              const DeviceArray<int32_t>* gather) const {
    const int count = gather == nullptr ? rows : int(gather->size());
    const DeviceArray<float> out(size_t(count * ld_out));
    CudaGemmArgs args;
    args.w = {type, k, n, packed.data(), bias.data()};
    args.a = a.data();
    args.lda = lda;
    args.gather = gather == nullptr ? nullptr : gather->data();
    args.residual = residual.data();
    args.ld_residual = n;
    args.out = out.data();
    args.ld_out = ld_out;
    args.rows = count;
    args.epilogue = epilogue;
    EXPECT_EQ(GemmCuda(launch, args), cudaSuccess);
    return out.Copy();
  }

  CudaWideGemmArgs Args(Epilogue epilogue, const DeviceArray<int32_t>* gather) const {
    CudaWideGemmArgs args;
    args.w = {type, k, n, packed.data(), bias.data()};
    args.a = half.data();
    args.lda = lda;
    args.gather = gather == nullptr ? nullptr : gather->data();
    args.residual = residual.data();
    args.ld_residual = n;
    args.ld_out = ld_out;
    args.rows = gather == nullptr ? rows : int(gather->size());
    args.epilogue = epilogue;
    return args;
  }

  WeightType type;
  int k, n, rows, lda, ld_out;
  DeviceArray<uint8_t> packed;
  DeviceArray<float> bias, residual, a;
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
  const std::vector<uint16_t> halves = half.Copy();
  for (size_t i = 0; i < expected.size(); ++i) {
    const bool written = int(i) % product.ld_out < product.n;
    ASSERT_EQ(halves[i], written ? F32ToF16(expected[i]) : 0xFFFF) << i;
  }
}

TEST(CudaWideGemmTest, EveryTileAndEpilogueHasTheBitsOfTheOtherKernels) {
  ASSERT_EQ(PrepareWideGemmCuda(), cudaSuccess);
  const WideTileGuard guard;
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
}  // namespace rivulet::kernels
