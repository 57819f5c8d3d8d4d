// SPDX-License-Identifier: Apache-2.0
// Activations, gates and decays on the GPU: the equations and arguments of activation.h and
// decay.h, with device pointers. Results differ from the CPU's by a few units in the last place,
// because expf does. An element's bits depend on its own inputs alone.
// Cost: 8 bytes an element, 6 with F16, 4 more with `times`.
// Tested by: tests/parity/cuda_element_rows_test.cc
#pragma once

#include "kernels/activation.h"
#include "kernels/cuda/common/launch_cuda.h"
#include "kernels/decay.h"

namespace rivulet::kernels {

// Call once per device, before the first launch.
cudaError_t PrepareElementRowsCuda();
// With scales y = out f(in x + bias) times; 1 changes no bit.
struct CudaScales {
  float in = 1, out = 1;
};
// cudaErrorInvalidValue where an argument is missing or out of range. If `half` is set, the results
// go there and y is not written.
cudaError_t ActivationCuda(const CudaLaunch& launch, const ActivationArgs& args,
                           const CudaHalfRows& half = {}, const CudaScales& scales = {});
cudaError_t DecayCuda(const CudaLaunch& launch, const DecayArgs& args);

}  // namespace rivulet::kernels
