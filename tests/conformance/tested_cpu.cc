// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "kernels/cpu/cpu_target.h"
#include "model/cpu/cpu_backend.h"
#include "tests/conformance/tested_backend.h"

namespace rivulet::testing {

// Thread counts and vector widths: all have the same bits.
std::vector<TestedBackend> TestedBackends() {
  TestedBackend cpu;
  cpu.name = "cpu";
  for (const char* target : {"", "AVX2"}) {
    if (!kernels::SetCpuTargetForTest(target)) continue;
    for (const int threads : {2, 1}) {
      if (RIVULET_SANITIZED && threads == 1) continue;
      cpu.same_bits.push_back([target, threads](std::shared_ptr<const Model> model, int num_slots) {
        (void)kernels::SetCpuTargetForTest(target);
        return CreateCpuBackend(std::move(model), {.num_slots = num_slots, .threads = threads});
      });
    }
  }
  (void)kernels::SetCpuTargetForTest("");
  return {cpu};
}

bool StepsAreSlow() { return RIVULET_SANITIZED; }
bool BundledModelsAreTooLarge() { return false; }

}  // namespace rivulet::testing
