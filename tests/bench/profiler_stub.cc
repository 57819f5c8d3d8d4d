// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/backend_choice.h"
#include "tests/bench/profiler.h"

namespace rivulet::bench {

void SetProfiling(bool /*on*/) { Fail("--profile: this build has no CUDA", 2); }

}  // namespace rivulet::bench
