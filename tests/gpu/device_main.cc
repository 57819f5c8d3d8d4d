// SPDX-License-Identifier: Apache-2.0
// GoogleTest's main for tests that need a GPU: without one they say so and count as skipped.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdio>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    printf("SKIPPED: no CUDA device; the test was compiled for one, not run\n");
    return 77;  // tests/gpu/CMakeLists.txt
  }
  return RUN_ALL_TESTS();
}
