// SPDX-License-Identifier: Apache-2.0
// How many blocks the kernels take at the sizes of real models: what the emulator counts, and no
// device tells.
#include <vector>

#include "kernels/cuda/blocks/causal_conv_cuda.h"
#include "kernels/cuda/blocks/recurrence_cuda.h"
#include "kernels/cuda/blocks/token_shift_cuda.h"
#include "kernels/cuda/gemm/gemm_cuda.h"
#include "kernels/cuda/gemm/gemm_wide_cuda.h"
#include "tests/support/cuda_arrays.h"

namespace rivulet::kernels::cuda_launches_test {
namespace {

constexpr int kMultiprocessors = 132;  // of an H100 and an H200

// Blocks of one launch: `start` gets a launch on a machine of so many multiprocessors.
template <class F>
int64_t BlocksOf(const F& start, int multiprocessors = kMultiprocessors) {
  CudaLaunch launch;
  launch.multiprocessors = multiprocessors;
  const int64_t before = cuda_emulator::Count().blocks;
  EXPECT_EQ(start(launch), cudaSuccess);
  RIVULET_EXPECT_CUDA(cudaDeviceSynchronize());
  return cuda_emulator::Count().blocks - before;
}

// Zeros for a product of `rows` rows and `n` columns with 32 k.
struct Zeros {
  Zeros(int rows_of, int n_of)
      : rows(rows_of),
        n(n_of),
        packed(std::vector<uint8_t>(CudaPackedSize(WeightType::kF16, kK, n))),
        bias(std::vector<float>(size_t(n))),
        a(std::vector<float>(size_t(rows) * kK)),
        out(size_t(rows) * size_t(n)) {}
  CudaMatrix matrix() const { return {WeightType::kF16, kK, n, packed.data(), bias.data()}; }
  static constexpr int kK = 32;
  int rows, n;
  DeviceArray<uint8_t> packed;
  DeviceArray<float> bias, a, out;
};

int64_t GemmBlocks(int rows, int n) {
  const Zeros zeros(rows, n);
  CudaGemmArgs args;
  args.w = zeros.matrix();
  args.a = zeros.a.data();
  args.out = zeros.out.data();
  args.rows = rows;
  args.lda = Zeros::kK;
  args.ld_out = n;
  return BlocksOf([&](const CudaLaunch& launch) { return GemmCuda(launch, args); });
}

// 128 blocks on 132 multiprocessors are enough for a tile: half of it would read the weights twice.
TEST(CudaLaunchesTest, ATileMayMissATenthOfTheMachine) {
  EXPECT_EQ(GemmBlocks(256, 1024), 128) << "tiles of 32 x 64";
  EXPECT_EQ(GemmBlocks(256, 896), 16 * 28) << "112 blocks of 32 x 64 are too few";
}

TEST(CudaLaunchesTest, FewRowsHaveAWarpForEightColumns) {
  EXPECT_EQ(GemmBlocks(1, 1024), 128);
  EXPECT_EQ(GemmBlocks(16, 1024), 128);
  EXPECT_EQ(GemmBlocks(16, 8192), 1024) << "at once, though tiles of 32 columns fill the machine";
  EXPECT_EQ(GemmBlocks(1, 16384), 512) << "not all at once";
  EXPECT_EQ(GemmBlocks(17, 4096), 2 * 128) << "more rows";
}

int64_t WideBlocks(int rows, int n, int multiprocessors) {
  const Zeros zeros(rows, n);
  CudaWideGemmArgs args;
  args.w = zeros.matrix();
  args.a = reinterpret_cast<const uint16_t*>(zeros.a.data());
  args.lda = Zeros::kK;
  args.rows = rows;
  args.out = zeros.out.data();
  args.ld_out = n;
  const auto start = [&](const CudaLaunch& launch) { return WideGemmCuda(launch, args); };
  return BlocksOf(start, multiprocessors);
}

TEST(CudaLaunchesTest, AWideTileMayMissATenthOfTheMachineToo) {
  ASSERT_EQ(PrepareWideGemmCuda(), cudaSuccess);
  // Fifteen tiles would fill ten multiprocessors; tiles have 128 rows and 128 or 64 columns.
  EXPECT_EQ(WideBlocks(256, 896, 10), 14);
  EXPECT_EQ(WideBlocks(256, 768, 10), 24);
}

TEST(CudaLaunchesTest, AWideProductOfFewRowsHasTilesOfFewRows) {
  ASSERT_EQ(PrepareWideGemmCuda(), cudaSuccess);
  EXPECT_EQ(WideBlocks(16, 1024, kMultiprocessors), 32) << "tiles of 16 x 32";
  EXPECT_EQ(WideBlocks(17, 1024, kMultiprocessors), 32) << "tiles of 32 x 32";
  EXPECT_EQ(WideBlocks(64, 1024, kMultiprocessors), 64);
  EXPECT_EQ(WideBlocks(64, 8192, kMultiprocessors), 128) << "tiles of 64 x 64 fill the machine";
}

// One prompt among steps of other sequences.
std::vector<CudaSegment> OnePrompt(int tokens, int others) {
  std::vector<CudaSegment> segments = {{0, 0, tokens, 0}};
  for (int i = 1; i <= others; ++i) segments.push_back({i, tokens + i - 1, 1, i});
  return segments;
}

TEST(CudaLaunchesTest, APromptIsSpreadOverTheMachine) {
  constexpr int kTokens = 512, kColumns = 128, kAcross = kColumns / 64;
  for (const int others : {0, 8}) {
    const DeviceArray<CudaSegment> segments(OnePrompt(kTokens, others));
    const int rows = kTokens + others, row_blocks = (rows + 15) / 16, shifts = (rows + 3) / 4;
    const DeviceArray<float> x(std::vector<float>(size_t(rows * kColumns))),
        weight(std::vector<float>(4 * kColumns)), y(size_t(rows * kColumns)),
        states(std::vector<float>(size_t(others + 1) * 3 * kColumns));
    const auto fill = [&](auto args) {
      args.segments = segments.data();
      args.num_segments = others + 1;
      args.rows = rows;
      args.x = x.data();
      args.y = y.data();
      args.ld_x = args.ld_y = kColumns;
      args.states = states.data();
      args.floats_per_slot = 3 * kColumns;
      return args;
    };
    CudaTokenShiftArgs shift = fill(CudaTokenShiftArgs());
    shift.mix = shift.weight = shift.bias = weight.data();
    shift.n = kColumns;
    shift.mixes = 1;
    CudaCausalConvArgs conv = fill(CudaCausalConvArgs());
    conv.weight = weight.data();
    conv.channels = kColumns;
    conv.width = 4;
    const auto start_shift = [&](const CudaLaunch& l) { return TokenShiftCuda(l, shift); };
    const auto start_conv = [&](const CudaLaunch& l) { return CausalConvCuda(l, conv); };
    EXPECT_EQ(BlocksOf(start_shift), shifts) << others;
    EXPECT_EQ(BlocksOf(start_conv), row_blocks * kAcross) << others;
    // A step: a block has a row.
    shift.num_segments = shift.rows = conv.num_segments = conv.rows = 1;
    const DeviceArray<CudaSegment> one(OnePrompt(1, 0));
    shift.segments = conv.segments = one.data();
    EXPECT_EQ(BlocksOf(start_shift), 1);
    EXPECT_EQ(BlocksOf(start_conv), kAcross);
  }
}

std::vector<CudaSegment> SegmentsOf(int num_segments, int tokens) {
  std::vector<CudaSegment> list;
  for (int i = 0; i < num_segments; ++i) list.push_back({i, i * tokens, tokens, i});
  return list;
}

// State updates of `num_segments` segments of `tokens` each.
struct Updates {
  Updates(int heads, int keys, int num_segments, int tokens)
      : ld(heads * (keys > 64 ? keys : 64)),
        segments(SegmentsOf(num_segments, tokens)),
        rows(std::vector<float>(size_t(num_segments * tokens * ld))),
        states(std::vector<float>(size_t(num_segments) * size_t(heads * keys * 64))),
        y(size_t(num_segments * tokens * ld)) {
    args.segments = segments.data();
    args.num_segments = num_segments;
    args.heads = heads;
    args.key_dim = keys;
    args.value_dim = 64;
    args.q = args.k = {rows.data(), ld, keys};
    args.v = {rows.data(), ld, 64};
    args.states = states.data();
    args.floats_per_slot = size_t(heads * keys * 64);
    args.y = y.data();
    args.ld_y = ld;
    args.rows = num_segments * tokens;
  }
  const int ld;
  const DeviceArray<CudaSegment> segments;
  const DeviceArray<float> rows, states, y;
  CudaRecurrenceArgs args;
};

// RWKV-7 0.4B has 16 heads of 64 x 64, Mamba-2 130m 24 of 128 x 64.
TEST(CudaLaunchesTest, FewSegmentsHaveFourTimesTheWarpsInBlocksOfOne) {
  const auto blocks = [](int heads, int keys, int num_segments) {
    const Updates of(heads, keys, num_segments, 1);
    return BlocksOf([&](const CudaLaunch& launch) { return RecurrenceCuda(launch, of.args); });
  };
  EXPECT_EQ(blocks(16, 64, 1), 128);
  EXPECT_EQ(blocks(16, 64, 8), 8 * 128);
  EXPECT_EQ(blocks(16, 64, 9), 9 * 32 / 4);
  EXPECT_EQ(blocks(24, 128, 2), 2 * 384);
  EXPECT_EQ(blocks(24, 128, 3), 3 * 96 / 4);
}

TEST(CudaLaunchesTest, AStateUpdateOfLongSegmentsBeginsWhenTheMachineIsFree) {
  const auto overlaps = [](int num_segments, int tokens) {
    const Updates of(1, 8, num_segments, tokens);
    CudaLaunch launch;
    launch.overlap = true;
    launch.multiprocessors = kMultiprocessors;
    const int64_t before = cuda_emulator::Count().overlapping;
    EXPECT_EQ(RecurrenceCuda(launch, of.args), cudaSuccess);
    RIVULET_EXPECT_CUDA(cudaDeviceSynchronize());
    return cuda_emulator::Count().overlapping > before;
  };
  EXPECT_TRUE(overlaps(1, 15));
  EXPECT_FALSE(overlaps(1, 16));
  EXPECT_TRUE(overlaps(2, 15));
}

}  // namespace
}  // namespace rivulet::kernels::cuda_launches_test
