// SPDX-License-Identifier: Apache-2.0
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "tests/bench/backend_choice.h"
#include "tests/bench/profiler.h"

namespace rivulet::bench {

void SetProfiling(bool on) {
  const cudaError_t error = on ? cudaProfilerStart() : cudaProfilerStop();
  if (error != cudaSuccess) Fail(absl::StrCat("profiler: ", cudaGetErrorString(error)), 1);
}

}  // namespace rivulet::bench
