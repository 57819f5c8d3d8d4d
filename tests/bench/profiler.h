// SPDX-License-Identifier: Apache-2.0
// Tells a profiler that was started with `--profile-from-start off`, such as ncu, what to profile.
#pragma once

namespace rivulet::bench {

// Starts or stops profiling. Ends the program if the build has no CUDA, or if CUDA refuses.
void SetProfiling(bool on);

}  // namespace rivulet::bench
