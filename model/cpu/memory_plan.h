// SPDX-License-Identifier: Apache-2.0
// What the memory of a machine makes of a CPU backend: its context and its slots.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "model/backend.h"
#include "model/backend_options.h"
#include "model/base/memory.h"
#include "model/config.h"

namespace rivulet {

// RESOURCE_EXHAUSTED (OUT_OF_MEMORY), of the slots.
absl::Status CpuOutOfMemory(absl::string_view message);

// Positions that a slot has room for, as options say or as AutoContext finds room in `left_bytes`;
// 0: no limit. Thread: any.
int64_t ChooseCpuContext(const CpuBackendOptions& options, const ModelConfig& config,
                         int64_t left_bytes);

// Sets what memory decides: context and slots, as options say, or as AutoContext and AutoSlots find
// room. Reads limits->weight_bytes. Errors: CpuOutOfMemory. Thread: any.
absl::Status PlanCpuMemory(const CpuBackendOptions& options, const ModelConfig& config,
                           const HostMemory& memory, BackendLimits* limits);

}  // namespace rivulet
