// SPDX-License-Identifier: Apache-2.0
// The memory that a CUDA backend will take of its device, computed before it takes any.
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
#include "model/slot_choice.h"

namespace rivulet {

// Bytes.
struct CudaNeed {
  size_t free = 0, total = 0;  // of the device, before
  size_t weights = 0, slot = 0, work = 0;
  int num_slots = 0;
  int64_t context = 0;  // BackendLimits::context
  int head_rows = 0;    // head outputs computed at a time; `work` includes their memory
  std::string slots_choice = "as set";  // BackendLimits::slots_choice

  size_t sum() const { return weights + work + slot * (size_t(num_slots) + 1); }
  // Free memory less some for the runtime's graphs and kernels.
  size_t usable() const { return free - std::min(free, total / 64); }
  // The bytes that head outputs may take, if `work` does not include them: a small part of the
  // rest, without the memory of a given number of slots.
  size_t HeadBytes(const CudaBackendOptions& options) const;
  // Sets the number of slots by AutoSlots if the options give none. Returns whether all fits now.
  bool Fit(const CudaBackendOptions& options);
  // What slots are chosen from, once `weights` and `work` are set.
  SlotRoom Room(const ModelConfig& config) const;
  // Sets `context` and `slot`. REQUIRES: `weights` and `work` are set. `limits` has the longest
  // context. Errors: those of ContextForSlots.
  absl::Status ChooseContext(const ModelConfig& config, const BackendLimits& limits,
                             const CudaBackendOptions& options);
  // RESOURCE_EXHAUSTED with the sum, and the number of slots that would fit.
  absl::Status OutOfMemory() const;
};

// The need on the current device. Errors: UNAVAILABLE (CUDA_ERROR).
absl::StatusOr<CudaNeed> MeasureCudaNeed(const ModelConfig& config, CudaNetwork& network,
                                         const BackendLimits& limits,
                                         const CudaBackendOptions& options,
                                         const CudaLibrary& library);

}  // namespace rivulet
