// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/cuda/rows/embed_cuda.h"
#include "kernels/embed.h"
#include "kernels/half.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels::cuda_embed_test {
namespace {

constexpr int kVocab = 11, kTableRows = 20;

TEST(CudaEmbedTest, EveryKindOfPositionEqualsTheCpu) {
  const std::vector<int32_t> tokens = {0, 10, 3, 3, 7};
  const std::vector<int64_t> at = {0, 19, 20, 5, 1000003};  // two behind the table
  const int rows = int(tokens.size());
  for (const int columns : {1, 3, 8, 130}) {
    const std::vector<float> table = RandomFloats(size_t(kVocab * columns), 1);
    std::vector<float> positions(size_t(kTableRows * columns));
    for (int p = 0; p < kTableRows; ++p) {
      SinusoidalPosition(p, columns, &positions[size_t(p * columns)]);
    }
    std::vector<double> frequencies(static_cast<size_t>(columns));
    CudaFrequencies(columns, frequencies.data());
    const DeviceArray<float> device_table(table), device_positions(positions);
    const DeviceArray<double> device_frequencies(frequencies);
    const DeviceArray<int32_t> device_tokens(tokens);
    const DeviceArray<int64_t> device_at(at);
    for (const bool has_positions : {false, true}) {
      for (const bool concat : {false, true}) {
        const int ld = 2 * columns + 3;
        ForEachOrder([&](const CudaLaunch& launch) {
          const DeviceArray<float> out(size_t(rows * ld));
          const DeviceArray<uint16_t> half(size_t(rows * ld));
          CudaEmbedArgs args;
          args.table = device_table.data();
          args.positions = device_positions.data();
          args.position_rows = kTableRows;
          args.frequencies = device_frequencies.data();
          args.columns = columns;
          args.has_positions = has_positions;
          args.concat = concat;
          args.tokens = device_tokens.data();
          args.at = has_positions ? device_at.data() : nullptr;
          args.out = out.data();
          args.half = half.data();
          args.rows = rows;
          args.ld = ld;
          ASSERT_EQ(EmbedCuda(launch, args), cudaSuccess);
          const std::vector<float> y = out.Copy();
          ASSERT_TRUE(Rounded(half.Copy(), y, [](size_t) { return true; }));
          std::vector<float> position(static_cast<size_t>(columns)),
              expected(static_cast<size_t>(ld));
          for (int r = 0; r < rows; ++r) {
            SinusoidalPosition(at[size_t(r)], columns, position.data());
            EmbedArgs cpu{table.data(), has_positions ? position.data() : nullptr,
                          columns,      columns,
                          concat,       ld};
            EmbedCpu(cpu, tokens[size_t(r)], expected.data());
            for (int i = 0; i < ld; ++i) {
              ASSERT_NEAR(y[size_t(r * ld + i)], expected[size_t(i)], 2e-7)
                  << "columns " << columns << " row " << r << " at " << i;
            }
          }
        });
      }
    }
  }
}

TEST(CudaEmbedTest, TablesOf16BitsAreWidened) {
  constexpr int kColumns = 5, kRows = 3;
  std::vector<float> table = RandomFloats(size_t{kVocab} * kColumns, 2);
  table[4 * kColumns] = 0x1.8p-24f;  // F16: subnormal
  const std::vector<int32_t> tokens = {4, 9, 0};
  const DeviceArray<int32_t> device_tokens(tokens);
  for (const WeightType type : {WeightType::kF16, WeightType::kBF16}) {
    const bool f16 = type == WeightType::kF16;
    std::vector<uint16_t> bits;
    for (const float v : table) bits.push_back(f16 ? F32ToF16(v) : F32ToBf16(v));
    const DeviceArray<uint16_t> device_table(bits);
    ForEachOrder([&](const CudaLaunch& launch) {
      const DeviceArray<float> out(size_t{kRows} * kColumns);
      CudaEmbedArgs args;
      args.table = device_table.data();
      args.type = type;
      args.columns = args.ld = kColumns;
      args.tokens = device_tokens.data();
      args.out = out.data();
      args.rows = kRows;
      ASSERT_EQ(EmbedCuda(launch, args), cudaSuccess);
      const std::vector<float> y = out.Copy();
      for (size_t i = 0; i < y.size(); ++i) {
        const uint16_t h = bits[size_t(tokens[i / kColumns]) * kColumns + i % kColumns];
        ASSERT_EQ(y[i], f16 ? F16ToF32(h) : Bf16ToF32(h)) << i;
      }
    });
  }
}

TEST(CudaEmbedTest, WrongShapesAreRefused) {
  const DeviceArray<float> table(8);
  CudaEmbedArgs args;
  args.table = table.data();
  args.columns = 8;
  args.rows = 1;
  args.ld = 7;
  EXPECT_EQ(EmbedCuda({}, args), cudaErrorInvalidValue);
  args.ld = 8;
  args.has_positions = true;  // and none given
  EXPECT_EQ(EmbedCuda({}, args), cudaErrorInvalidValue);
}

TEST(CudaEmbedTest, ColumnsFromTheWidthOnAreNotTouched) {
  constexpr int kColumns = 3, kWidth = 8, kLd = 16;
  const std::vector<float> table = RandomFloats(size_t{kVocab} * kColumns, 1);
  const DeviceArray<float> device_table(table), out(2 * kLd);
  const DeviceArray<int32_t> tokens(std::vector<int32_t>{4, 9});
  const DeviceArray<uint16_t> half(2 * kLd);
  CudaEmbedArgs args;
  args.table = device_table.data();
  args.columns = kColumns;
  args.tokens = tokens.data();
  args.out = out.data();
  args.half = half.data();
  args.rows = 2;
  args.ld = kLd;
  args.width = kWidth;
  ASSERT_EQ(EmbedCuda({}, args), cudaSuccess);
  const std::vector<float> y = out.Copy();
  const std::vector<uint16_t> halves = half.Copy();
  for (size_t i = 0; i < y.size(); ++i) {
    const int column = int(i % kLd);
    ASSERT_EQ(std::isnan(y[i]), column >= kWidth) << column;
    ASSERT_EQ(halves[i] == 0xFFFF, column >= kWidth) << column;
  }
  args.width = kColumns - 1;
  EXPECT_EQ(EmbedCuda({}, args), cudaErrorInvalidValue);
  args.width = kLd + 1;
  EXPECT_EQ(EmbedCuda({}, args), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace rivulet::kernels::cuda_embed_test
