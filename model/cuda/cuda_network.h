// SPDX-License-Identifier: Apache-2.0
// CudaNetwork: a model's forward pass on the device, as CudaSteps drives it: token rows in, raw
// head outputs out, states advanced. Launches only; the same launches are queued directly (a first
// step) or captured (a step).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/common/launch_cuda.h"

namespace rivulet {

// Token rows of one pass, and those of them whose head outputs are wanted. Device pointers.
struct CudaPass {
  const int32_t* tokens = nullptr;                 // [rows]
  const int64_t* positions = nullptr;              // [rows]
  const kernels::CudaSegment* segments = nullptr;  // [num_segments]
  int rows = 0, num_segments = 0;
  int num_long = 0;                 // of the segments, the first so many are long
  const int32_t* gather = nullptr;  // [num_outputs] token rows; null: all, in their order
  int num_outputs = 0;
};

// Thread: const, but passes share activations, so they must follow each other in one stream.
class CudaNetwork {
 public:
  virtual ~CudaNetwork() = default;

  // All layers.
  virtual absl::Status Layers(const kernels::CudaLaunch& launch, const CudaPass& pass) const = 0;
  // Head outputs of the output rows first .. first + rows - 1 of the last pass, into
  // CudaScratch::outputs.
  virtual absl::Status Head(const kernels::CudaLaunch& launch, int first, int rows) const = 0;
};

}  // namespace rivulet
