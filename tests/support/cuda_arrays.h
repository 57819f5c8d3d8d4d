// SPDX-License-Identifier: Apache-2.0
// Shared helpers for tests of CUDA kernels. The same tests run on the emulator (tests/parity) and
// on a GPU (tests/gpu).
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/common/launch_cuda.h"
#include "kernels/half.h"
#if defined(RIVULET_CUDA_EMULATED)
#include "tests/support/cuda_emulator/cuda_emulator.h"
#endif

namespace rivulet::kernels {

#define RIVULET_EXPECT_CUDA(call) EXPECT_EQ(cudaSuccess, (call))

// Calls f(launch) several times, with varying order: on the emulator with threads and blocks in
// order and shuffled, and as on a machine that overlaps launches; on a GPU with and without
// overlap, if it supports overlap. f launches on launch.stream; all launches have ended before the
// next call.
template <class F>
void ForEachOrder(const F& f) {
  CudaLaunch launch;
  RIVULET_EXPECT_CUDA(cudaStreamCreateWithFlags(&launch.stream, cudaStreamNonBlocking));
  int major = 0;
  RIVULET_EXPECT_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  RIVULET_EXPECT_CUDA(
      cudaDeviceGetAttribute(&launch.multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  for (int order = 0; order < 3; ++order) {
#if defined(RIVULET_CUDA_EMULATED)
    cuda_emulator::Options options;
    // For bug hunting: RIVULET_EMULATOR_SEED=n takes other shuffles.
    const char* seed = std::getenv("RIVULET_EMULATOR_SEED");
    options.seed =
        static_cast<uint64_t>(order) * (seed == nullptr ? 1 : std::strtoull(seed, nullptr, 10));
    cuda_emulator::Reset(options);
#endif
    launch.overlap = order == 1 && major >= 9;
    f(launch);
    RIVULET_EXPECT_CUDA(cudaStreamSynchronize(launch.stream));
  }
  RIVULET_EXPECT_CUDA(cudaStreamDestroy(launch.stream));
}

// Device memory between red zones, filled with 0xFF (NaN, -1) or a copy of host values. 256-byte
// aligned. The destructor reports a touched red zone.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t n) : n_(n) {
    RIVULET_EXPECT_CUDA(cudaMalloc(&memory_, 2 * kZone + Bytes()));
    RIVULET_EXPECT_CUDA(cudaMemset(memory_, kMark, 2 * kZone + Bytes()));
    RIVULET_EXPECT_CUDA(cudaMemset(memory_ + kZone, 0xFF, Bytes()));
    RIVULET_EXPECT_CUDA(cudaDeviceSynchronize());
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { Set(values); }
  ~DeviceArray() {
    RIVULET_EXPECT_CUDA(cudaDeviceSynchronize());
    std::vector<unsigned char> all(2 * kZone + Bytes());
    RIVULET_EXPECT_CUDA(cudaMemcpy(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost));
    bool intact = true;
    for (size_t i = 0; i < all.size(); ++i) {
      intact = intact && ((i >= kZone && i < kZone + Bytes()) || all[i] == kMark);
    }
    EXPECT_TRUE(intact) << "a write beside an array of " << n_;
    RIVULET_EXPECT_CUDA(cudaFree(memory_));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return reinterpret_cast<T*>(memory_ + kZone); }
  size_t size() const { return n_; }
  void Set(const std::vector<T>& values) {
    EXPECT_EQ(values.size(), n_);
    if (n_ == 0) return;
    RIVULET_EXPECT_CUDA(cudaMemcpy(data(), values.data(), Bytes(), cudaMemcpyHostToDevice));
    // A copy from pageable memory may return before it has arrived.
    RIVULET_EXPECT_CUDA(cudaDeviceSynchronize());
  }
  // Waits for all launches.
  std::vector<T> Copy() const {
    RIVULET_EXPECT_CUDA(cudaDeviceSynchronize());
    std::vector<T> values(n_);
    if (n_ == 0) return values;
    RIVULET_EXPECT_CUDA(cudaMemcpy(values.data(), data(), Bytes(), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  static constexpr size_t kZone = 256;
  static constexpr unsigned char kMark = 0xA5;
  size_t Bytes() const { return n_ * sizeof(T); }
  size_t n_;
  unsigned char* memory_ = nullptr;
};

// Checks `halves`: the `values` in F16 where written(i), else the initial content of a DeviceArray.
template <class F>
::testing::AssertionResult Rounded(const std::vector<uint16_t>& halves,
                                   const std::vector<float>& values, const F& written) {
  if (halves.size() != values.size()) return ::testing::AssertionFailure() << halves.size();
  for (size_t i = 0; i < halves.size(); ++i) {
    const uint16_t expected = written(i) ? F32ToF16(values[i]) : 0xFFFF;
    if (halves[i] != expected) {
      return ::testing::AssertionFailure()
             << "element " << i << ": " << halves[i] << ", expected " << expected;
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace rivulet::kernels
