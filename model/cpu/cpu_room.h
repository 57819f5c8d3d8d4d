// SPDX-License-Identifier: Apache-2.0
// What the memory of a machine makes of a CPU backend: its context and its slots.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "model/backend.h"
#include "model/backend_options.h"
#include "model/base/memory.h"
#include "model/config.h"

namespace rivulet {

// RESOURCE_EXHAUSTED (OUT_OF_MEMORY), of the slots.
absl::Status CpuOutOfMemory(absl::string_view message);

// Sets what memory decides: context and slots, as options say, or as AutoContext and AutoSlots find
// room. Reads limits->weight_bytes. Errors: CpuOutOfMemory. Thread: any.
absl::Status ChooseCpuRoom(const CpuBackendOptions& options, const ModelConfig& config,
                           const HostMemory& memory, BackendLimits* limits);

}  // namespace rivulet
