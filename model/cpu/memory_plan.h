// SPDX-License-Identifier: Apache-2.0
// Chooses the context and the slots of a CPU backend by the memory of the machine.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "model/backend.h"
#include "model/backend_options.h"
#include "model/base/memory.h"
#include "model/config.h"

namespace rivulet {

// The rows of one run that may have drafts.
int SpeculatingRows(const CpuBackendOptions& options);

// RESOURCE_EXHAUSTED (OUT_OF_MEMORY), about the slots.
absl::Status CpuOutOfMemory(absl::string_view message);

// The number of positions of a slot, from the options or else for `left_bytes` of `whole` ("this
// machine's 100 bytes"); 0: no limit. Errors: those of ContextForSlots. Thread: any.
absl::StatusOr<int64_t> ChooseCpuContext(const CpuBackendOptions& options,
                                         const ModelConfig& config, int64_t left_bytes,
                                         const std::string& whole);

// Sets context, slots and drafts.bytes in `limits`, from the options or else by memory
// (model/slot_choice.h). Reads weight_bytes and drafts.guesses. Errors: CpuOutOfMemory; those of
// ChooseCpuContext. Thread: any.
absl::Status PlanCpuMemory(const CpuBackendOptions& options, const ModelConfig& config,
                           const HostMemory& memory, BackendLimits* limits);

}  // namespace rivulet
