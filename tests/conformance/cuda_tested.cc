// SPDX-License-Identifier: Apache-2.0
// The CUDA backend under the seam's tests: on the emulator, or on the GPU of this machine.
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "model/cuda/cuda_backend.h"
#include "tests/conformance/tested_backend.h"
#include "tests/support/cuda_on_device.h"
#include "tests/support/cuda_patience.h"

namespace rivulet::testing {
namespace {

#ifdef RIVULET_CUDA_EMULATED  // where every token of a first run costs time
constexpr int kTokens = 128, kOtherTokens = 97, kOtherRows = 33;
#else
constexpr int kTokens = 0, kOtherTokens = 1100, kOtherRows = 300;
#endif

// RIVULET_TESTS_CUDA_OFF names what the backends do without ("graphs", "overlap"): where a test
// fails on a device, that tells which of them is at fault.
bool TurnedOff(absl::string_view what) {
  const char* off = std::getenv("RIVULET_TESTS_CUDA_OFF");
  return off != nullptr && absl::StrContains(off, what);
}

BackendFactory Factory(CudaPrecision precision, int max_rows, int max_tokens, int head_rows,
                       int many_rows, bool graphs = true, WeightChoice weights = {}) {
  return [=](std::shared_ptr<const Model> model, int num_slots) {
    CudaBackendOptions options;
    options.num_slots = num_slots;
    options.precision = precision;
    options.weights = weights;
    options.max_rows = max_rows;
    options.max_tokens = max_tokens;
    options.head_rows = head_rows;
    options.many_rows = many_rows;
    options.patience = Patience();
    options.graphs = graphs && !TurnedOff("graphs");
    options.overlap = !TurnedOff("overlap");
    return CreateCudaBackend(std::move(model), options);
  };
}

}  // namespace

// Limits of rows and tokens choose other buckets, tiles and pieces, with the same bits.
std::vector<TestedBackend> TestedBackends() {
  if (const int code = ExitCodeWithoutDevice(); code != 0) std::exit(code);
  std::vector<TestedBackend> tested(2);
  tested[0].name = "float32";
  tested[1].name = "fp16";
  tested[1].least_output_tolerance = 1e-2;
  const CudaPrecision precisions[] = {CudaPrecision::kFloat32, CudaPrecision::kDefault};
  for (int i = 0; i < 2; ++i) {
    tested[size_t(i)].same_bits = {Factory(precisions[i], 0, kTokens, 0, 1 << 20),
                                   Factory(precisions[i], kOtherRows, kOtherTokens, 5, 1)};
  }
  tested[1].same_bits.push_back(
      Factory(CudaPrecision::kDefault, 0, kTokens, 0, 1 << 20, /*graphs=*/false));
  return tested;
}

std::vector<TestedBackend> RoundedBackends() {
  if (const int code = ExitCodeWithoutDevice(); code != 0) std::exit(code);
  const auto int8 = [](int max_rows, int max_tokens, int head_rows, int many_rows) {
    return Factory(CudaPrecision::kDefault, max_rows, max_tokens, head_rows, many_rows, true,
                   WeightPrecision::kInt8);
  };
  TestedBackend tested;
  tested.name = "int8";
  tested.same_bits = {int8(0, kTokens, 0, 1 << 20), int8(kOtherRows, kOtherTokens, 5, 1)};
  return {tested};
}

bool HasExperts() { return false; }

#ifdef RIVULET_CUDA_EMULATED
bool StepsAreSlow() { return true; }
// By hand, with minutes to spare: RIVULET_TESTS_LARGE=1 cuda_golden_emulated_test.
bool BundledModelsAreTooLarge() { return std::getenv("RIVULET_TESTS_LARGE") == nullptr; }
#else
bool StepsAreSlow() { return false; }
bool BundledModelsAreTooLarge() { return std::getenv("RIVULET_TESTS_SMALL") != nullptr; }
#endif

}  // namespace rivulet::testing
