// SPDX-License-Identifier: Apache-2.0
// Linked into a rivulet-server whose CUDA backend runs on the emulator: once the file that
// RIVULET_EMULATOR_FAULT names exists, the next kernel faults ("fail") or never ends ("hang").
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "model/cuda/cuda_backend.h"
#include "tests/support/cuda_emulator/cuda_emulator.h"

namespace rivulet::testing {
namespace {

void AwaitFault(const std::string& path) {
  while (true) {
    std::ifstream file(path);
    std::string word;
    if (file >> word && word == "fail") return cuda_emulator::FailKernel(1);
    if (word == "hang") return cuda_emulator::HangKernel(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

struct Watch {
  Watch() {
    // Asked for here, before the server's library asks: so the linker takes the emulator's.
    create = &CreateCudaBackend;
    if (const char* path = std::getenv("RIVULET_EMULATOR_FAULT")) {
      std::thread(AwaitFault, std::string(path)).detach();
    }
  }
  decltype(&CreateCudaBackend) volatile create;
} const watch;

}  // namespace
}  // namespace rivulet::testing
