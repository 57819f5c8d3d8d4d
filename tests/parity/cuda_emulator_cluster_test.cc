// SPDX-License-Identifier: Apache-2.0
// Clusters on the emulator: what works, and programs with one mistake each.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/cuda_emulator/cuda_emulator.h"

namespace rivulet::cuda_emulator {
namespace {

constexpr unsigned kSize = 4, kClusters = 3;
constexpr int kClusterThreads = 32, kRounds = 5;
constexpr unsigned kBytes = 256;  // that a block sends in a round, to all
const Site kHere = {__FILE__, __LINE__};

// What goes wrong in Rounds().
enum Mistake { kNone, kNobodyExpects, kNoRoom, kOneLeaves, kTooSoon, kTwiceFreed, kOutside };

struct Layout {
  uint64_t full, free;
  unsigned char data[kSize * kBytes + 16];  // 16-byte aligned by what stands before
};

// Every block sends its part of `from` to all, into one buffer that they read and free, round
// after round.
__global__ void Rounds(const unsigned char* from, int* sums, int mistake) {
  auto* shared = static_cast<Layout*>(SharedMemory());
  const unsigned rank = ClusterRank(), part = blockIdx.x / kSize * kSize + rank;
  const bool one = threadIdx.x == 0;
  if (one) {
    InitBarrier(&shared->full, 1);
    InitBarrier(&shared->free, kSize);
  }
  ClusterBarrier(kHere);
  if (mistake == kOneLeaves && rank == 2) return;
  int sum = 0;
  for (unsigned round = 0; round < kRounds; ++round) {
    if (one) {
      if (mistake != kNobodyExpects) ExpectBytes(&shared->full, kSize * kBytes, kHere);
      for (unsigned r = 0; r < kSize; ++r) ArriveAt(&shared->free, r, kHere);
      if (mistake == kTwiceFreed && rank == 1) ArriveAt(&shared->free, 0, kHere);
      if (mistake != kTooSoon) AwaitPhase(&shared->free, round % 2, kHere);
      const unsigned char* mine = from + (round * kSize * kClusters + part) * kBytes;
      unsigned char* to = shared->data + rank * kBytes + (mistake == kOutside ? 1 << 20 : 0);
      CopyToBlocks(to, mine, kBytes, &shared->full, mistake == kNoRoom ? 0x1F : 0x0F, kHere);
    }
    AwaitPhase(&shared->full, round % 2, kHere);
    for (unsigned i = threadIdx.x; i < kSize * kBytes; i += kClusterThreads) sum += shared->data[i];
    __syncthreads();  // read
  }
  ClusterBarrier(kHere);
  sums[blockIdx.x * kClusterThreads + threadIdx.x] = sum;
}

class CudaEmulatorClusterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Reset();
    Values();
    ASSERT_EQ(cudaMalloc(&from_, values_.size()), cudaSuccess);
    ASSERT_EQ(cudaMemcpy(from_, values_.data(), values_.size(), cudaMemcpyHostToDevice),
              cudaSuccess);
    ASSERT_EQ(cudaMalloc(&sums_, kSize * kClusters * kClusterThreads * sizeof(int)), cudaSuccess);
    attribute_.id = cudaLaunchAttributeClusterDimension;
    attribute_.val.clusterDim = {kSize, 1, 1};
    config_.gridDim = kSize * kClusters;
    config_.blockDim = kClusterThreads;
    config_.dynamicSmemBytes = sizeof(Layout);
    config_.attrs = &attribute_;
    config_.numAttrs = 1;
  }
  void TearDown() override {
    Reset();
    EXPECT_EQ(cudaFree(from_), cudaSuccess);
    EXPECT_EQ(cudaFree(sums_), cudaSuccess);
  }
  void Values() {
    values_.resize(size_t{kRounds} * kSize * kClusters * kBytes);
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = static_cast<unsigned char>(i * 37 / 5);
  }
  // The sum of each block.
  std::vector<int> Run(Mistake mistake) {
    EXPECT_EQ(cudaLaunchKernelEx(&config_, Rounds, from_, sums_, static_cast<int>(mistake)),
              cudaSuccess);
    std::vector<int> all(kSize * kClusters * kClusterThreads), sums(kSize * kClusters);
    EXPECT_EQ(cudaMemcpy(all.data(), sums_, all.size() * sizeof(int), cudaMemcpyDeviceToHost),
              cudaSuccess);
    for (size_t i = 0; i < all.size(); ++i) sums[i / kClusterThreads] += all[i];
    return sums;
  }
  std::vector<int> Expected() const {
    std::vector<int> sums(kSize * kClusters);
    for (size_t i = 0; i < values_.size(); ++i) {
      const size_t cluster = i / kBytes % (kSize * kClusters) / kSize;
      for (size_t r = 0; r < kSize; ++r) sums[cluster * kSize + r] += values_[i];
    }
    return sums;
  }

  std::vector<unsigned char> values_;
  unsigned char* from_ = nullptr;
  int* sums_ = nullptr;
  cudaLaunchAttribute attribute_ = {};
  cudaLaunchConfig_t config_ = {};
};

TEST_F(CudaEmulatorClusterTest, BlocksOfAClusterSendToEachOtherInEveryOrder) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Options options;
    options.seed = seed;
    Reset(options);
    EXPECT_EQ(Run(kNone), Expected()) << "seed " << seed;
  }
}

TEST_F(CudaEmulatorClusterTest, WhoSendsBeforeThereIsRoomSpoilsWhatOthersRead) {
  bool spoiled = false;
  for (uint64_t seed = 1; seed < 8; ++seed) {
    Options options;
    options.seed = seed;
    Reset(options);
    spoiled = spoiled || Run(kTooSoon) != Expected();
  }
  EXPECT_TRUE(spoiled);
}

TEST_F(CudaEmulatorClusterTest, MistakesEndTheProgram) {
  EXPECT_DEATH(Run(kNobodyExpects), "a barrier's phase never ends: 1 of 1 and -1024 bytes");
  EXPECT_DEATH(Run(kNoRoom), "the cluster has no block 4");
  EXPECT_DEATH(Run(kOneLeaves), "which has exited|phase never ends|is not reached by all");
  EXPECT_DEATH(Run(kTwiceFreed), "more arrive at a barrier|phase never ends");
  EXPECT_DEATH(Run(kOutside), "is not in shared memory");
}

TEST_F(CudaEmulatorClusterTest, LaunchesThatNoDeviceTakesAreRefused) {
  config_.gridDim = kSize * kClusters + 1;
  EXPECT_EQ(cudaLaunchKernelEx(&config_, Rounds, from_, sums_, 0), cudaErrorInvalidConfiguration);
  config_.gridDim = 32;
  attribute_.val.clusterDim.x = 16;  // not on every device
  EXPECT_EQ(cudaLaunchKernelEx(&config_, Rounds, from_, sums_, 0), cudaErrorInvalidConfiguration);
  attribute_.val.clusterDim.x = kSize;
  Options options;
  options.major = 8;
  Reset(options);
  EXPECT_EQ(cudaLaunchKernelEx(&config_, Rounds, from_, sums_, 0), cudaErrorNotSupported);
  int clusters = 0;
  EXPECT_EQ(cudaOccupancyMaxActiveClusters(&clusters, Rounds, &config_), cudaErrorNotSupported);
  options.major = 9;
  options.multiprocessors = 6;
  Reset(options);
  config_.dynamicSmemBytes = 200 << 10;
  EXPECT_EQ(cudaOccupancyMaxActiveClusters(&clusters, Rounds, &config_), cudaSuccess);
  EXPECT_EQ(clusters, 1);
}

}  // namespace
}  // namespace rivulet::cuda_emulator
