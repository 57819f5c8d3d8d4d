// SPDX-License-Identifier: Apache-2.0
// The CUDA backend under the seam's tests: on the emulator, or on the GPU of this machine.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

#include "model/cuda_backend.h"
#include "tests/conformance/tested_backend.h"

namespace rivulet::testing {
namespace {

constexpr int kSkipped = 77;
#ifdef RIVULET_CUDA_EMULATED  // where every token of a first run costs time
constexpr int kTokens = 128, kOtherTokens = 97, kOtherRows = 33;
#else
constexpr int kTokens = 0, kOtherTokens = 1100, kOtherRows = 300;
#endif

BackendFactory Factory(CudaPrecision precision, int max_rows, int max_tokens, int head_rows,
                       int many_rows) {
  return [=](std::shared_ptr<const Model> model, int num_slots) {
    CudaBackendOptions options;
    options.num_slots = num_slots;
    options.precision = precision;
    options.max_rows = max_rows;
    options.max_tokens = max_tokens;
    options.head_rows = head_rows;
    options.many_rows = many_rows;
    options.patience = absl::Minutes(10);  // the emulator is slow, not hung
    return CreateCudaBackend(std::move(model), options);
  };
}

}  // namespace

// Limits of rows and tokens choose other buckets, tiles and pieces, with the same bits.
std::vector<TestedBackend> TestedBackends() {
  int devices = 0;
  const cudaError_t counted = cudaGetDeviceCount(&devices);
  if (counted != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "no CUDA device: %s\n", cudaGetErrorString(counted));
    std::exit(kSkipped);
  }
  std::vector<TestedBackend> tested(2);
  tested[0].name = "float32";
  tested[1].name = "fp16";
  tested[1].least_output_tolerance = 1e-2;
  const CudaPrecision precisions[] = {CudaPrecision::kFloat32, CudaPrecision::kDefault};
  for (int i = 0; i < 2; ++i) {
    tested[size_t(i)].same_bits = {Factory(precisions[i], 0, kTokens, 0, 1 << 20),
                                   Factory(precisions[i], kOtherRows, kOtherTokens, 5, 7)};
  }
  return tested;
}

#ifdef RIVULET_CUDA_EMULATED
bool StepsAreSlow() { return true; }
// By hand, with minutes to spare: RIVULET_TESTS_LARGE=1 cuda_golden_emulated_test.
bool BundledModelsAreTooLarge() { return std::getenv("RIVULET_TESTS_LARGE") == nullptr; }
#else
bool StepsAreSlow() { return false; }
bool BundledModelsAreTooLarge() { return std::getenv("RIVULET_TESTS_SMALL") != nullptr; }
#endif

}  // namespace rivulet::testing
