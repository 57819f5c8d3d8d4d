// SPDX-License-Identifier: Apache-2.0
// Shows a profiler that was started with `--profile-from-start off`, such as ncu, what to look at.
#pragma once

namespace rivulet::bench {

// From here on it looks, or no longer. Ends the program where the build has no CUDA, or CUDA
// refuses.
void SetProfiling(bool on);

}  // namespace rivulet::bench
