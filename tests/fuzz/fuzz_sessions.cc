// SPDX-License-Identifier: Apache-2.0
// Any bytes as a schedule of session operations: the engine of tests/simulation keeps every
// promise, whatever its limits are, whatever clients ask for and whenever.
#include <cstdio>
#include <string>

#include "tests/fuzz/promise.h"
#include "tests/simulation/simulation.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rivulet::SimulationOptions options;
  options.trace = std::getenv("RIVULET_SIMULATION_TRACE") != nullptr;
  rivulet::Simulation simulation(rivulet::Choices(data, size), options);
  const std::string broken = simulation.Run();
  for (const std::string& line : simulation.trace()) std::fprintf(stderr, "%s\n", line.c_str());
  rivulet::fuzz::Promise(broken.empty(), broken.c_str());
  return 0;
}
