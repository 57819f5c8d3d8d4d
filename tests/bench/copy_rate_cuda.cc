// SPDX-License-Identifier: Apache-2.0
// The rate at which a GPU copies its own memory, in GB/s, read and written bytes together: the
// limit that steps are measured against. Prints it alone on a line; exit code 77 where there is no
// GPU.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "tests/support/cuda_on_device.h"

namespace {

constexpr size_t kBytes = size_t{1} << 30;
constexpr int kTimes = 15;

int Fail(const char* what, cudaError_t error) {
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  return 1;
}

}  // namespace

int main() {
  if (const int code = rivulet::testing::ExitCodeWithoutDevice(); code != 0) return code;
  void *from = nullptr, *to = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  if (auto e = cudaMalloc(&from, kBytes); e != cudaSuccess) return Fail("cudaMalloc", e);
  if (auto e = cudaMalloc(&to, kBytes); e != cudaSuccess) return Fail("cudaMalloc", e);
  if (auto e = cudaEventCreate(&begin); e != cudaSuccess) return Fail("cudaEventCreate", e);
  if (auto e = cudaEventCreate(&end); e != cudaSuccess) return Fail("cudaEventCreate", e);
  // Not zeros: they may travel faster.
  if (auto e = cudaMemset(from, 0x5A, kBytes); e != cudaSuccess) return Fail("cudaMemset", e);
  std::vector<float> milliseconds;
  for (int i = 0; i < kTimes; ++i) {
    float time = 0;
    (void)cudaEventRecord(begin, nullptr);
    const cudaError_t copied = cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, nullptr);
    if (copied != cudaSuccess) return Fail("cudaMemcpyAsync", copied);
    (void)cudaEventRecord(end, nullptr);
    if (auto e = cudaEventSynchronize(end); e != cudaSuccess) return Fail("the copy", e);
    if (auto e = cudaEventElapsedTime(&time, begin, end); e != cudaSuccess) return Fail("time", e);
    milliseconds.push_back(time);
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  std::printf("%.1f\n", 2.0 * double(kBytes) / double(milliseconds[kTimes / 2]) / 1e6);
  return 0;
}
