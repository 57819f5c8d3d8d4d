// SPDX-License-Identifier: Apache-2.0
// The time without progress after which tests consider a CUDA backend hung.
#pragma once

#include <cstdlib>

#include "absl/time/time.h"

namespace rivulet::testing {

// The emulator is slow, so it gets minutes. A device without progress for seconds is hung, and
// waiting longer would take the time of other tests. Under compute-sanitizer
// (RIVULET_TESTS_SANITIZER) a device is a hundred times slower.
inline absl::Duration Patience() {
#ifdef RIVULET_CUDA_EMULATED
  return absl::Minutes(10);
#else
  return std::getenv("RIVULET_TESTS_SANITIZER") != nullptr ? absl::Seconds(120) : absl::Seconds(5);
#endif
}

}  // namespace rivulet::testing
