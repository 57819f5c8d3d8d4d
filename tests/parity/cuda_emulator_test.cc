// SPDX-License-Identifier: Apache-2.0
// The emulator must catch what a GPU would not forgive: each test is a program with one mistake.
#include "tests/support/cuda_emulator/cuda_emulator.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/half.h"

namespace rivulet::cuda_emulator {
namespace {

constexpr unsigned kAll = 0xFFFFFFFFu;
constexpr int kBlockThreads = 64;
int Thread() { return static_cast<int>(threadIdx.x); }

// Reverses a block's values; `barrier`: between writing and reading.
__global__ void Reverse(const float* in, float* out, bool barrier) {
  auto* shared = static_cast<float*>(SharedMemory());
  shared[Thread()] = in[Thread()];
  if (barrier) __syncthreads();
  out[Thread()] = shared[static_cast<int>(blockDim.x) - 1 - Thread()];
}

// Two rounds through one buffer; `barrier`: between reading and writing again.
__global__ void TwoRounds(float* out, bool barrier) {
  auto* shared = static_cast<float*>(SharedMemory());
  float sum = 0;
  for (int round = 0; round < 2; ++round) {
    shared[Thread()] = static_cast<float>(round * 1000 + Thread());
    __syncthreads();
    sum += shared[(Thread() + 1) % static_cast<int>(blockDim.x)];
    if (barrier) __syncthreads();
  }
  out[Thread()] = sum;
}

__global__ void WriteAt(float* out, int at) {
  if (Thread() == 0) out[at] = 1;
}
__global__ void WriteSharedAt(int at) {
  if (Thread() == 0) static_cast<float*>(SharedMemory())[at] = 1;
}
__global__ void SomeWait(int first) {
  if (Thread() < first) return;
  __syncthreads();
}
__global__ void TwoBarriers() {
  if (Thread() < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void SomeShuffle(int lanes, float* out) {
  if (Thread() < lanes) out[Thread()] = __shfl_xor_sync(kAll, 1.0f, 1);
}
__global__ void Sums(float* out) {
  const float lane = static_cast<float>(Lane());
  float v = lane;
  for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(kAll, v, o);
  const unsigned odd = __ballot_sync(kAll, Lane() % 2);
  const float down = __shfl_down_sync(kAll, lane, 3), up = __shfl_up_sync(kAll, lane, 3);
  const float first = __shfl_sync(kAll, lane, 5);
  const bool good = v == 496 && odd == 0xAAAAAAAAu && down == (lane < 29 ? lane + 3 : lane) &&
                    up == (lane >= 3 ? lane - 3 : lane) && first == 5 &&
                    __any_sync(kAll, Lane() == 7) != 0 && __all_sync(kAll, Lane() < 31) == 0;
  const int anyone = __syncthreads_or(Thread() == 63);
  out[Thread()] = good && anyone != 0 ? 1 : 0;
}
__global__ void Multiply(const uint16_t* a, const uint16_t* b, float* d) {
  const int g = Lane() / 4, t = Lane() % 4;
  const auto pair = [](const uint16_t* m, int at, int step) {
    return uint32_t{m[at]} | uint32_t{m[at + step]} << 16;
  };
  // a row-major [16, 16], b row-major [16, 8]
  const uint32_t fa[4] = {pair(a, g * 16 + 2 * t, 1), pair(a, (g + 8) * 16 + 2 * t, 1),
                          pair(a, g * 16 + 2 * t + 8, 1), pair(a, (g + 8) * 16 + 2 * t + 8, 1)};
  const uint32_t fb[2] = {pair(b, 2 * t * 8 + g, 8), pair(b, (2 * t + 8) * 8 + g, 8)};
  float sum[4] = {100, 100, 100, 100};
  MmaF16(sum, fa, fb, kernels::F16ToF32);
  d[g * 8 + 2 * t] = sum[0];
  d[g * 8 + 2 * t + 1] = sum[1];
  d[(g + 8) * 8 + 2 * t] = sum[2];
  d[(g + 8) * 8 + 2 * t + 1] = sum[3];
}
__global__ void Add(float* to, float value) { to[Thread()] += value; }
__global__ void FillAll(float* to, float value) {
  WaitForPredecessor();
  to[int(blockIdx.x) * kBlockThreads + Thread()] = value;
}
// `early`: reads before it waits for the kernel before it.
__global__ void CopyAll(const float* from, float* to, bool early) {
  const int at = int(blockIdx.x) * kBlockThreads + Thread();
  const float before = early ? from[at] : 0;
  WaitForPredecessor();
  to[at] = early ? before : from[at];
}

class CudaEmulatorTest : public ::testing::Test {
 protected:
  CudaEmulatorTest() {
    Reset();
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&device_, kBytes), cudaSuccess);
    config_.gridDim = 1;
    config_.blockDim = kThreads;
    config_.dynamicSmemBytes = kBytes;
    config_.stream = stream_;
  }
  ~CudaEmulatorTest() override {
    Reset();
    EXPECT_EQ(cudaFree(device_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  // Launches a kernel and waits for it.
  void Run(auto kernel, auto... args) {
    EXPECT_EQ(cudaLaunchKernelEx(&config_, kernel, args...), cudaSuccess);
    cudaDeviceSynchronize();
  }
  std::vector<float> Copy() {
    std::vector<float> host(kThreads);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(host.data(), device_, kBytes, cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  }
  // Outputs of Reverse under the first seeds.
  std::vector<std::vector<float>> ReverseOften(bool barrier) {
    std::vector<float> in(kThreads);
    for (int i = 0; i < kThreads; ++i) in[size_t(i)] = float(i);
    float* device_in = nullptr;
    EXPECT_EQ(cudaMalloc(&device_in, kBytes), cudaSuccess);
    std::vector<std::vector<float>> results;
    for (uint64_t seed = 0; seed < 4; ++seed) {
      Reset({.seed = seed});
      EXPECT_EQ(cudaMemcpy(device_in, in.data(), kBytes, cudaMemcpyHostToDevice), cudaSuccess);
      EXPECT_EQ(cudaLaunchKernelEx(&config_, Reverse, device_in, device_, barrier), cudaSuccess);
      results.push_back(Copy());
    }
    EXPECT_EQ(cudaFree(device_in), cudaSuccess);
    return results;
  }

  static constexpr int kThreads = kBlockThreads;
  static constexpr size_t kBytes = kThreads * sizeof(float);
  cudaStream_t stream_ = nullptr;
  float* device_ = nullptr;
  cudaLaunchConfig_t config_ = {};
};

TEST_F(CudaEmulatorTest, AMissingBarrierChangesResults) {
  for (const std::vector<float>& result : ReverseOften(true)) {
    for (int i = 0; i < kThreads; ++i) ASSERT_EQ(result[size_t(i)], float(kThreads - 1 - i));
  }
  bool wrong = false;
  for (const std::vector<float>& result : ReverseOften(false)) {
    for (int i = 0; i < kThreads; ++i) wrong |= !(result[size_t(i)] == float(kThreads - 1 - i));
  }
  EXPECT_TRUE(wrong);
}

TEST_F(CudaEmulatorTest, AMissingBarrierBeforeABufferIsWrittenAgainChangesResults) {
  for (const bool barrier : {true, false}) {
    int wrong = 0;
    for (uint64_t seed = 1; seed < 5; ++seed) {
      Reset({.seed = seed});
      ASSERT_EQ(cudaLaunchKernelEx(&config_, TwoRounds, device_, barrier), cudaSuccess);
      const std::vector<float> result = Copy();
      for (int i = 0; i < kThreads; ++i) {
        wrong += result[size_t(i)] != float(1000 + 2 * ((i + 1) % kThreads));
      }
    }
    EXPECT_EQ(wrong > 0, !barrier);
  }
}

TEST_F(CudaEmulatorTest, StrayWritesAreCaughtAndTheKernelNamed) {
  float* odd = nullptr;  // its end is no page's end
  ASSERT_EQ(cudaMalloc(&odd, 100), cudaSuccess);
  EXPECT_DEATH(Run(WriteAt, odd, 25),
               "a write 100 bytes from the beginning.*in kernel .*::WriteAt");
  EXPECT_DEATH(Run(WriteAt, odd, -1), "a write -4 bytes.*WriteAt");
  ASSERT_EQ(cudaFree(odd), cudaSuccess);
  EXPECT_DEATH(Run(WriteAt, device_, kThreads),
               "an access outside an allocation.*WriteAt.*thread 0");
  EXPECT_DEATH(Run(WriteSharedAt, kThreads),
               "outside the 256 bytes of dynamic shared memory, at offset 256.*WriteSharedAt");
}

TEST_F(CudaEmulatorTest, FreedMemoryIsCaught) {
  EXPECT_DEATH(
      {
        float* freed = nullptr;
        EXPECT_EQ(cudaMalloc(&freed, 1000), cudaSuccess);
        EXPECT_EQ(cudaFree(freed), cudaSuccess);
        Run(WriteAt, freed, 0);
      },
      "a use of freed memory: 1000 bytes.*WriteAt");
  EXPECT_EQ(cudaFree(device_ + 1), cudaErrorInvalidValue);
}

TEST_F(CudaEmulatorTest, ThreadsThatNeverComeAreCaught) {
  EXPECT_DEATH(Run(SomeWait, 5), "not reached by all.*5 of 64 have exited.*__syncthreads");
  EXPECT_DEATH(Run(TwoBarriers), "threads meet at different barriers");
  EXPECT_DEATH(Run(SomeShuffle, 31, device_), "__shfl_xor_sync names lane|not reached by all");
}

TEST_F(CudaEmulatorTest, AKernelThatOverlapsMustWaitForItsPredecessor) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config_.attrs = &attribute;
  config_.numAttrs = 1;
  EXPECT_DEATH(Run(Add, device_, 1.0f), "0 of 64 threads waited for the predecessor.*Add");
  Reset({.major = 8});
  EXPECT_EQ(cudaLaunchKernelEx(&config_, Add, device_, 1.0f), cudaErrorNotSupported);
}

// Launches that may overlap, of more threads together than begin early.
class CudaEmulatorOverlapTest : public CudaEmulatorTest {
 protected:
  CudaEmulatorOverlapTest() {
    attribute_.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute_.val.programmaticStreamSerializationAllowed = 1;
    config_.gridDim = kBlocks;
    config_.attrs = &attribute_;
    config_.numAttrs = 1;
    for (float** p : {&a_, &b_, &c_}) EXPECT_EQ(cudaMalloc(p, kAllBytes), cudaSuccess);
    EXPECT_EQ(cudaMemset(a_, 0, kAllBytes), cudaSuccess);
  }
  ~CudaEmulatorOverlapTest() override {
    for (float* p : {a_, b_, c_}) EXPECT_EQ(cudaFree(p), cudaSuccess);
  }
  void Fill(float* to, float value) {
    EXPECT_EQ(cudaLaunchKernelEx(&config_, FillAll, to, value), cudaSuccess);
  }
  void CopyAToB(bool early) {
    EXPECT_EQ(cudaLaunchKernelEx(&config_, CopyAll, a_, b_, early), cudaSuccess);
  }
  // How many elements of b are `value`; the rest are 0.
  int CountB(float value) {
    std::vector<float> host(kBlocks * kThreads);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(host.data(), b_, kAllBytes, cudaMemcpyDeviceToHost), cudaSuccess);
    const auto count = std::count(host.begin(), host.end(), value);
    EXPECT_EQ(count + std::count(host.begin(), host.end(), 0.0f), kBlocks * kThreads);
    return static_cast<int>(count);
  }

  static constexpr int kBlocks = 40, kAll = kBlocks * kThreads, kEarly = 256;
  static constexpr size_t kAllBytes = kAll * sizeof(float);
  float *a_ = nullptr, *b_ = nullptr, *c_ = nullptr;
  cudaLaunchAttribute attribute_ = {};
};

TEST_F(CudaEmulatorOverlapTest, ALoadBeforeTheWaitSeesNothingOfThePredecessor) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Reset({.seed = seed});
    for (const bool early : {false, true}) {
      ASSERT_EQ(cudaMemset(a_, 0, kAllBytes), cudaSuccess);
      Fill(a_, 1);
      CopyAToB(early);
      EXPECT_EQ(CountB(1), early ? kAll - kEarly : kAll) << "seed " << seed;
    }
  }
}

TEST_F(CudaEmulatorOverlapTest, ItSeesWhatTwoLaunchesBeforeHaveWritten) {
  Fill(a_, 1);
  Fill(c_, 2);
  CopyAToB(true);
  EXPECT_EQ(CountB(1), kAll);
}

TEST_F(CudaEmulatorOverlapTest, WhatIsNoKernelAndAKernelWithoutTheAttributeWaitForAllBefore) {
  Fill(a_, 1);
  ASSERT_EQ(cudaMemsetAsync(c_, 0, kAllBytes, stream_), cudaSuccess);
  CopyAToB(true);
  EXPECT_EQ(CountB(1), kAll);
  Fill(a_, 2);
  config_.numAttrs = 0;
  CopyAToB(true);
  EXPECT_EQ(CountB(2), kAll);
}

TEST_F(CudaEmulatorOverlapTest, KernelsOfAGraphOverlapEachOtherButNotWhatIsAroundTheGraph) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  CopyAToB(true);
  Fill(a_, 3);
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  for (const int times : {1, 2}) {
    Fill(a_, 1);
    for (int i = 0; i < times; ++i) ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
    EXPECT_EQ(CountB(times == 1 ? 1.0f : 3.0f), kAll);
  }
  CopyAToB(true);  // behind the graph
  EXPECT_EQ(CountB(3), kAll);
  ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);

  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(a_, 0, kAllBytes, stream_), cudaSuccess);
  Fill(a_, 4);
  CopyAToB(true);
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  EXPECT_EQ(CountB(4), kAll - kEarly);
  ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

// What has begun early is forgotten with the rest of its stream.
TEST_F(CudaEmulatorOverlapTest, AnErrorForgetsWhatHasBegun) {
  Fill(a_, 1);
  CopyAToB(true);
  FailKernel(2);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorIllegalAddress);
  Reset();
  ASSERT_EQ(cudaMemset(b_, 0, kAllBytes), cudaSuccess);
  EXPECT_EQ(CountB(1), 0);
  Fill(c_, 2);
  EXPECT_EQ(CountB(1), 0);
}

TEST_F(CudaEmulatorTest, WarpExchangesGiveWhatTheManualSays) {
  ASSERT_EQ(cudaLaunchKernelEx(&config_, Sums, device_), cudaSuccess);
  EXPECT_EQ(Copy(), std::vector<float>(kThreads, 1.0f));
}

TEST_F(CudaEmulatorTest, TheTensorCoreProductIsAMatrixProduct) {
  std::vector<uint16_t> a(256), b(128);
  for (size_t i = 0; i < a.size(); ++i) a[i] = kernels::F32ToF16(float(i % 13) - 6);
  for (size_t i = 0; i < b.size(); ++i) b[i] = kernels::F32ToF16(float(i % 7) - 2.5f);
  uint16_t *device_a = nullptr, *device_b = nullptr;
  float* d = nullptr;
  ASSERT_EQ(cudaMalloc(&device_a, 512), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&device_b, 256), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&d, 512), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(device_a, a.data(), 512, cudaMemcpyHostToDevice), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(device_b, b.data(), 256, cudaMemcpyHostToDevice), cudaSuccess);
  config_.blockDim = 32;
  ASSERT_EQ(cudaLaunchKernelEx(&config_, Multiply, device_a, device_b, d), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  std::vector<float> product(128);
  ASSERT_EQ(cudaMemcpy(product.data(), d, 512, cudaMemcpyDeviceToHost), cudaSuccess);
  for (int r = 0; r < 16; ++r) {
    for (int c = 0; c < 8; ++c) {
      float sum = 100;
      for (int k = 0; k < 16; ++k) {
        sum += kernels::F16ToF32(a[size_t(r * 16 + k)]) * kernels::F16ToF32(b[size_t(k * 8 + c)]);
      }
      ASSERT_EQ(product[size_t(r * 8 + c)], sum) << r << "," << c;
    }
  }
  for (void* p : std::vector<void*>{device_a, device_b, d}) ASSERT_EQ(cudaFree(p), cudaSuccess);
}

TEST_F(CudaEmulatorTest, FreshMemoryIsPoisoned) {
  for (const float v : Copy()) EXPECT_TRUE(std::isnan(v));
}

TEST_F(CudaEmulatorTest, QueuedWorkRunsLateAndInOrder) {
  std::vector<float> host(kThreads, 1.0f), back(kThreads, -1.0f);
  ASSERT_EQ(cudaMemcpyAsync(device_, host.data(), kBytes, cudaMemcpyHostToDevice, stream_),
            cudaSuccess);
  ASSERT_EQ(cudaLaunchKernelEx(&config_, Add, device_, 2.0f), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(back.data(), device_, kBytes, cudaMemcpyDeviceToHost, stream_),
            cudaSuccess);
  host[0] = 50;  // reused too early: the copy has not happened
  EXPECT_EQ(back[0], -1);
  Reset({.items_per_query = 1});
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaSuccess);
  EXPECT_EQ(back[0], 52);
  EXPECT_EQ(back[1], 3);
}

TEST_F(CudaEmulatorTest, EventsOrderStreams) {
  cudaStream_t other = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);  // never recorded
  ASSERT_EQ(cudaMemsetAsync(device_, 0, kBytes, stream_), cudaSuccess);
  ASSERT_EQ(cudaLaunchKernelEx(&config_, Add, device_, 5.0f), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(other, event), cudaSuccess);
  std::vector<float> back(kThreads);
  ASSERT_EQ(cudaMemcpyAsync(back.data(), device_, kBytes, cudaMemcpyDeviceToHost, other),
            cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  EXPECT_EQ(back[3], 5);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  ASSERT_EQ(cudaEventDestroy(event), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(other), cudaSuccess);
}

TEST_F(CudaEmulatorTest, GraphsReplayWhatWasCaptured) {
  ASSERT_EQ(cudaMemset(device_, 0, kBytes), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(cudaLaunchKernelEx(&config_, Add, device_, 1.0f), cudaSuccess);
  ASSERT_EQ(cudaLaunchKernelEx(&config_, Add, device_, 10.0f), cudaSuccess);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(Copy()[0], 0);  // nothing ran
  for (int i = 0; i < 3; ++i) ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);  // launches keep their own
  EXPECT_EQ(Copy()[0], 33);
  EXPECT_EQ(Count().graph_launches, 3);
  EXPECT_EQ(Count().kernels, 6);

  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
  float* more = nullptr;
  EXPECT_EQ(cudaMalloc(&more, 4), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
}

TEST_F(CudaEmulatorTest, LaunchesBeyondTheLimitsFail) {
  config_.gridDim = dim3(1, 65536);
  EXPECT_EQ(cudaLaunchKernelEx(&config_, Add, device_, 1.0f), cudaErrorInvalidConfiguration);
  config_.gridDim = 1;
  config_.blockDim = 1025;
  EXPECT_EQ(cudaLaunchKernelEx(&config_, Add, device_, 1.0f), cudaErrorInvalidConfiguration);
  config_.blockDim = 1;
  config_.dynamicSmemBytes = (48 << 10) + 4;
  EXPECT_EQ(cudaLaunchKernelEx(&config_, Add, device_, 1.0f), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(Add, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10),
            cudaSuccess);
  EXPECT_EQ(cudaLaunchKernelEx(&config_, Add, device_, 1.0f), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
}

TEST_F(CudaEmulatorTest, CopiesToTheWrongSideAndBeyondAnArrayFail) {
  std::vector<float> host(kThreads + 1);
  EXPECT_EQ(cudaMemcpy(device_, host.data(), kBytes + 4, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host.data(), host.data(), kBytes, cudaMemcpyDeviceToHost),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(CudaEmulatorTest, MemoryEnds) {
  Reset({.memory_bytes = 1 << 20});
  float* large = nullptr;
  EXPECT_EQ(cudaMalloc(&large, 1 << 20), cudaErrorMemoryAllocation);  // device_ takes some
  size_t free_bytes = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
  EXPECT_EQ(free_bytes, total - kBytes);
}

TEST_F(CudaEmulatorTest, InjectedFaultsAnswer) {
  FailCallOf("cudaMemGetInfo", 2, cudaErrorUnknown);
  size_t a = 0, b = 0;
  EXPECT_EQ(cudaMemGetInfo(&a, &b), cudaSuccess);
  EXPECT_EQ(cudaMemGetInfo(&a, &b), cudaErrorUnknown);
  EXPECT_EQ(cudaMemGetInfo(&a, &b), cudaSuccess);
  FailKernel(2);
  ASSERT_EQ(cudaLaunchKernelEx(&config_, Add, device_, 1.0f), cudaSuccess);
  ASSERT_EQ(cudaLaunchKernelEx(&config_, Add, device_, 1.0f), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaMemGetInfo(&a, &b), cudaErrorIllegalAddress);  // sticky
}

TEST_F(CudaEmulatorTest, AHungKernelIsNeverReadyAndWaitingForItAborts) {
  HangKernel(1);
  ASSERT_EQ(cudaLaunchKernelEx(&config_, Add, device_, 1.0f), cudaSuccess);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  EXPECT_DEATH(cudaStreamSynchronize(stream_), "cudaStreamSynchronize would wait for ever");
  EXPECT_DEATH(cudaFree(device_), "cudaFree would wait for ever");
}

}  // namespace
}  // namespace rivulet::cuda_emulator
