// SPDX-License-Identifier: Apache-2.0
// The part of CUDA's header of the same name that benchmarks use, for the emulator.
#pragma once

#include "cuda_runtime_api.h"

cudaError_t cudaProfilerStart();
cudaError_t cudaProfilerStop();
