// SPDX-License-Identifier: Apache-2.0
// How long tests let a CUDA backend make no progress before they take it for hung.
#pragma once

#include <cstdlib>

#include "absl/time/time.h"

namespace rivulet::testing {

// The emulator is slow, not hung. A device that says nothing for seconds is, and a test that waits
// for it for minutes would cost the time of all others; under compute-sanitizer
// (RIVULET_TESTS_SANITIZER) it is a hundred times as slow.
inline absl::Duration Patience() {
#ifdef RIVULET_CUDA_EMULATED
  return absl::Minutes(10);
#else
  return std::getenv("RIVULET_TESTS_SANITIZER") != nullptr ? absl::Seconds(120) : absl::Seconds(5);
#endif
}

}  // namespace rivulet::testing
