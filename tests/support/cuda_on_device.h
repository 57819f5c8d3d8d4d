// SPDX-License-Identifier: Apache-2.0
// The check with which tests and benchmarks that need a GPU begin.
#pragma once

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdio>

namespace rivulet::testing {

inline constexpr int kSkippedExitCode = 77;

// Returns 0 if this process can use a GPU. Else writes the reason to stderr and returns the exit
// code with which the process should end: kSkippedExitCode if the machine has no GPU; 1 if it has a
// GPU that CUDA cannot use, which is a fault and no reason to skip.
inline int ExitCodeWithoutDevice() {
  int devices = 0;
  const cudaError_t counted = cudaGetDeviceCount(&devices);
  if (counted == cudaSuccess && devices > 0) return 0;
  const char* why = counted == cudaSuccess ? "there is none" : cudaGetErrorString(counted);
  const bool absent = counted == cudaSuccess || counted == cudaErrorNoDevice ||
                      counted == cudaErrorInsufficientDriver;
  if (absent && access("/dev/nvidiactl", F_OK) != 0) {
    std::fprintf(stderr, "skipped: no CUDA device: %s\n", why);
    return kSkippedExitCode;
  }
  std::fprintf(stderr, "CUDA cannot use the device of this machine: %s\n", why);
  return 1;
}

}  // namespace rivulet::testing
