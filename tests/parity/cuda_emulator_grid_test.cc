// SPDX-License-Identifier: Apache-2.0
// Cooperative launches on the emulator: blocks that wait for each other.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/cuda_emulator/cuda_emulator.h"

namespace rivulet::cuda_emulator {
namespace {

constexpr int kBlocks = 8, kThreads = 64;
constexpr uint64_t kPatience = 3'000'000'000;

int Index() { return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); }

// Each thread tells its number and waits for the one of the thread behind it, in the next block
// where it is the last of its own. Gives up after kPatience: then 1000.
__global__ void Neighbours(volatile int* told, int* out) {
  const int all = static_cast<int>(gridDim.x * blockDim.x);
  told[Index()] = Index() + 1;
  const int next = (Index() + 1) % all;
  const uint64_t begin = Nanoseconds();
  while (told[next] == 0 && Nanoseconds() - begin < kPatience) Pause();
  const int value = told[next] == 0 ? 1000 : told[next];
  __syncthreads();
  out[Index()] = value;
}

// Every block has shared memory of its own: writes, waits for all blocks, reads.
__global__ void OwnMemory(int* arrived, int* out) {
  auto* shared = static_cast<int*>(SharedMemory());
  shared[threadIdx.x] = static_cast<int>(blockIdx.x);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(arrived, 1);
  while (*static_cast<volatile int*>(arrived) < static_cast<int>(gridDim.x)) Pause();
  __syncthreads();
  out[Index()] = shared[kThreads - 1 - static_cast<int>(threadIdx.x)];
}

class CudaEmulatorGridTest : public ::testing::Test {
 protected:
  CudaEmulatorGridTest() {
    Reset();
    EXPECT_EQ(cudaMalloc(&device_, 2 * kBytes), cudaSuccess);
    EXPECT_EQ(cudaMemset(device_, 0, 2 * kBytes), cudaSuccess);
    out_ = device_ + kBlocks * kThreads;
    attribute_.id = cudaLaunchAttributeCooperative;
    attribute_.val.cooperative = 1;
    config_.gridDim = kBlocks;
    config_.blockDim = kThreads;
    config_.dynamicSmemBytes = kThreads * sizeof(int);
    config_.attrs = &attribute_;
    config_.numAttrs = 1;
  }
  ~CudaEmulatorGridTest() override {
    Reset();
    EXPECT_EQ(cudaFree(device_), cudaSuccess);
  }
  std::vector<int> Out() {
    std::vector<int> host(kBlocks * kThreads);
    EXPECT_EQ(cudaMemcpy(host.data(), out_, kBytes, cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  }

  static constexpr size_t kBytes = size_t{kBlocks} * kThreads * sizeof(int);
  int *device_ = nullptr, *out_ = nullptr;
  cudaLaunchAttribute attribute_ = {};
  cudaLaunchConfig_t config_ = {};
};

TEST_F(CudaEmulatorGridTest, BlocksOfACooperativeLaunchWaitForEachOther) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Reset({.seed = seed});
    ASSERT_EQ(cudaMemset(device_, 0, kBytes), cudaSuccess);
    ASSERT_EQ(cudaLaunchKernelEx(&config_, Neighbours, device_, out_), cudaSuccess);
    const std::vector<int> out = Out();
    for (int i = 0; i < kBlocks * kThreads; ++i) {
      ASSERT_EQ(out[size_t(i)], (i + 1) % (kBlocks * kThreads) + 1) << "seed " << seed;
    }
    ASSERT_EQ(cudaMemset(device_, 0, kBytes), cudaSuccess);
    ASSERT_EQ(cudaLaunchKernelEx(&config_, OwnMemory, device_, out_), cudaSuccess);
    const std::vector<int> own = Out();
    for (int i = 0; i < kBlocks * kThreads; ++i) ASSERT_EQ(own[size_t(i)], i / kThreads);
  }
}

TEST_F(CudaEmulatorGridTest, WithoutTheAttributeTheyRunOneAfterAnotherAndTimePasses) {
  Reset({.seed = 0});
  config_.numAttrs = 0;
  ASSERT_EQ(cudaLaunchKernelEx(&config_, Neighbours, device_, out_), cudaSuccess);
  const std::vector<int> out = Out();
  EXPECT_EQ(out[kThreads - 2], kThreads);
  EXPECT_EQ(out[kThreads - 1], 1000);  // the next block has not run
}

TEST_F(CudaEmulatorGridTest, ALostBlockLeavesTheOthersToTheirPatience) {
  LoseBlock(2, 3);
  ASSERT_EQ(cudaLaunchKernelEx(&config_, Neighbours, device_, out_), cudaSuccess);
  EXPECT_EQ(Out()[3 * kThreads - 1], 3 * kThreads + 1);
  ASSERT_EQ(cudaMemset(device_, 0, 2 * kBytes), cudaSuccess);
  ASSERT_EQ(cudaLaunchKernelEx(&config_, Neighbours, device_, out_), cudaSuccess);
  const std::vector<int> out = Out();
  EXPECT_EQ(out[3 * kThreads - 1], 1000);
  EXPECT_EQ(out[3 * kThreads], 0);
  EXPECT_EQ(out[4 * kThreads], 4 * kThreads + 2);
}

TEST_F(CudaEmulatorGridTest, ALaunchThatDoesNotFitTheDeviceAtOnceIsRefused) {
  Reset({.multiprocessors = 2});
  ASSERT_EQ(cudaFuncSetAttribute(Neighbours, cudaFuncAttributeMaxDynamicSharedMemorySize, 70 << 10),
            cudaSuccess);
  int fit = 0;
  ASSERT_EQ(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, Neighbours, kThreads, 70 << 10),
            cudaSuccess);
  EXPECT_EQ(fit, 3);
  config_.dynamicSmemBytes = 70 << 10;
  EXPECT_EQ(cudaLaunchKernelEx(&config_, Neighbours, device_, out_),
            cudaErrorCooperativeLaunchTooLarge);
  config_.gridDim = 6;
  EXPECT_EQ(cudaLaunchKernelEx(&config_, Neighbours, device_, out_), cudaSuccess);
  ASSERT_EQ(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, Neighbours, 1024, 0), cudaSuccess);
  EXPECT_EQ(fit, 2);
  Reset({.multiprocessors = 2, .cooperative = false});
  EXPECT_EQ(cudaLaunchKernelEx(&config_, Neighbours, device_, out_), cudaErrorNotSupported);
}

}  // namespace
}  // namespace rivulet::cuda_emulator
