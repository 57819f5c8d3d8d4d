// SPDX-License-Identifier: Apache-2.0
// What a CUDA backend takes of its device's memory, before it takes any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/backend.h"
#include "model/backend_options.h"
#include "model/config.h"
#include "model/cuda/cuda_network.h"
#include "model/cuda/cuda_products.h"

namespace rivulet {

// Bytes.
struct CudaNeed {
  size_t free = 0, total = 0;  // the device's, before
  size_t weights = 0, slot = 0, work = 0;
  int num_slots = 0;
  int64_t context = 0;  // BackendLimits::context
  int head_rows = 0;    // whose head outputs are made at a time; `work` has their memory
  std::string slots_choice = "as set";  // BackendLimits::slots_choice

  size_t sum() const { return weights + work + slot * (size_t(num_slots) + 1); }
  // The runtime itself needs some for graphs and kernels.
  size_t usable() const { return free - std::min(free, total / 64); }
  // What head outputs may take while `work` is without them: a small part of what is left, and
  // nothing that slots of a given number need.
  size_t HeadBytes(const CudaBackendOptions& options) const;
  // Where the options say no number of slots, sets it to what AutoSlots finds room for. Whether all
  // fits now.
  bool Fit(const CudaBackendOptions& options);
  // Sets `context` and `slot`, where `weights` and `work` are known. `limits` has the longest
  // context.
  void ChooseContext(const ModelConfig& config, const BackendLimits& limits,
                     const CudaBackendOptions& options);
  // RESOURCE_EXHAUSTED with the arithmetic, and how many slots would fit.
  absl::Status OutOfMemory() const;
};

// Of the current device. Errors: UNAVAILABLE (CUDA_ERROR).
absl::StatusOr<CudaNeed> MeasureCudaNeed(const ModelConfig& config, CudaNetwork& network,
                                         const BackendLimits& limits,
                                         const CudaBackendOptions& options,
                                         const CudaLibrary& library);

}  // namespace rivulet
