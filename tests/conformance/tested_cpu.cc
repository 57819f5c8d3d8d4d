// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <initializer_list>

#include "kernels/cpu/cpu_target.h"
#include "model/cpu/cpu_backend.h"
#include "tests/conformance/tested_backend.h"

namespace rivulet::testing {

namespace {

// Thread counts and vector widths: all have the same bits.
TestedBackend WithWeights(const std::string& name, WeightPrecision weights,
                          std::initializer_list<const char*> targets) {
  TestedBackend cpu;
  cpu.name = name;
  for (const char* target : targets) {
    if (!kernels::SetCpuTargetForTest(target)) continue;
    for (const int threads : {2, 1}) {
      if (RIVULET_SANITIZED && threads == 1) continue;
      cpu.same_bits.push_back([=](std::shared_ptr<const Model> model, int num_slots) {
        (void)kernels::SetCpuTargetForTest(target);
        return CreateCpuBackend(std::move(model),
                                {.num_slots = num_slots, .weights = weights, .threads = threads});
      });
    }
  }
  (void)kernels::SetCpuTargetForTest("");
  return cpu;
}

}  // namespace

std::vector<TestedBackend> TestedBackends() {
  return {WithWeights("cpu", WeightPrecision::kAuto, {"", "AVX2"})};
}

std::vector<TestedBackend> RoundedBackends() {
  return {WithWeights("int8", WeightPrecision::kInt8, {"", "AVX3", "AVX2"}),
          WithWeights("int4", WeightPrecision::kInt4, {"", "AVX3", "AVX2"})};
}

bool StepsAreSlow() { return RIVULET_SANITIZED; }
bool BundledModelsAreTooLarge() { return false; }
bool HasExperts() { return true; }

}  // namespace rivulet::testing
