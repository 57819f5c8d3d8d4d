// SPDX-License-Identifier: Apache-2.0
// The CUDA backend in float32 against the CPU backend: both do the same operations in the same
// order, drawn at random, and must tell the same.
#include <gtest/gtest.h>

#include "model/cpu/cpu_backend.h"
#include "model/cuda/cuda_backend.h"
#include "tests/conformance/tested_backend.h"
#include "tests/conformance/two_backends.h"
#include "tests/support/paths.h"

namespace rivulet::testing {
namespace {

class CudaAgainstCpuTest : public ::testing::TestWithParam<std::string> {
 protected:
  // Ends the program, as skipped, where there is no device.
  static void SetUpTestSuite() { (void)TestedBackends(); }
};

TEST_P(CudaAgainstCpuTest, RandomOperationsGiveTheSameRecordsAndStatesInTheSameOrder) {
  constexpr int kSlots = 5;
  auto model = Model::Load(SourcePath("tests/conformance/") + GetParam());
  ASSERT_TRUE(model.ok()) << model.status();
  auto cpu = CreateCpuBackend(*model, {.num_slots = kSlots, .threads = 1});
  CudaBackendOptions options;
  options.num_slots = kSlots;
  options.precision = CudaPrecision::kFloat32;
  options.max_tokens = 64;
  auto cuda = CreateCudaBackend(*model, options);
  ASSERT_TRUE(cpu.ok() && cuda.ok()) << cpu.status() << cuda.status();
  TwoBackends both(*model, *std::move(cpu), *std::move(cuda), kSlots,
                   {.outputs = 1e-3, .logprobs = 2e-3, .states = 1e-4},
                   uint32_t(std::hash<std::string>()(GetParam())));
  both.Compare(80);
}

INSTANTIATE_TEST_SUITE_P(Models, CudaAgainstCpuTest,
                         ::testing::Values("models/tiny-elu-relu", "models/tiny-elu-learned-concat",
                                           "models/tiny-elu-sinusoidal", "models/tiny-rfa",
                                           "models/tiny-image", "softmax/full", "softmax/window4",
                                           "softmax/window16-learned"),
                         [](const auto& param) { return TestName(param.param, "mirror"); });

}  // namespace
}  // namespace rivulet::testing
