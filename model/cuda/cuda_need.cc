// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_need.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/cuda/cuda_device.h"
#include "model/cuda/cuda_outputs.h"
#include "model/cuda/cuda_run_block.h"
#include "model/cuda/cuda_slots.h"

namespace rivulet {

size_t CudaNeed::HeadBytes(const CudaBackendOptions& options) const {
  constexpr size_t kPart = 32;
  const auto without = [](size_t all, size_t taken) { return all - std::min(all, taken); };
  const size_t left = without(usable(), weights + work);
  const size_t slots = options.num_slots.has_value() ? slot * (size_t(num_slots) + 1) : 0;
  return std::min(left / kPart, without(left, slots));
}

bool CudaNeed::Fit(const CudaBackendOptions& options) {
  if (!options.num_slots.has_value()) {
    const int64_t left = int64_t(usable()) - int64_t(weights + work + slot);  // with the guard slot
    SlotChoice choice = AutoSlots(left, slot, absl::StrCat("the device's ", total, " bytes"));
    num_slots = choice.num_slots;
    slots_choice = std::move(choice.words);
  }
  return sum() <= usable();
}

SlotRoom CudaNeed::Room(const ModelConfig& config) const {
  StateSize size = config.state().size();
  size.fixed = CudaSlots::BytesPerSlot(config, size.fixed);
  return {int64_t(usable()) - int64_t(weights + work), size, LongestContext(config),
          absl::StrCat("the device's ", total, " bytes"), /*guards=*/1};
}

absl::Status CudaNeed::ChooseContext(const ModelConfig& config, const BackendLimits& limits,
                                     const CudaBackendOptions& options) {
  SlotRoom room = Room(config);
  if (options.max_context.slots) {
    // Head outputs come later.
    const int rows = CudaOutputs::HeadRows(config, limits, HeadBytes(options));
    room.left_bytes -= int64_t(CudaOutputs::Bytes(config, std::max(rows, options.head_rows)));
    RIVULET_ASSIGN_OR_RETURN(context, ContextForSlots(*options.max_context.slots, room));
  } else if (options.max_context.tokens && limits.context > 0) {
    context = limits.context;
  } else {
    context =
        AutoContext(room.left_bytes, limits.state, limits.context, options.num_slots.value_or(16));
  }
  slot = CudaSlots::BytesPerSlot(config, limits.state.At(context));
  return absl::OkStatus();
}

absl::Status CudaNeed::OutOfMemory() const {
  const size_t other = weights + work + slot;  // with the guard slot
  const size_t fit = usable() > other ? (usable() - other) / slot : 0;
  const std::string context_words =
      context == 0 ? "" : absl::StrCat(", each with room for a context of ", context, " tokens,");
  return MakeError(
      absl::StatusCode::kResourceExhausted,
      absl::StrCat("weights of ", weights, " bytes, ", num_slots, " slots of ", slot, " bytes",
                   context_words, " and work space of ", work, " bytes exceed the ", usable(),
                   " bytes free of ", total, " on the CUDA device; ", fit, " slots would fit"),
      {"OUT_OF_MEMORY", "slots", {}});
}

absl::StatusOr<CudaNeed> MeasureCudaNeed(const ModelConfig& config, CudaNetwork& network,
                                         const BackendLimits& limits,
                                         const CudaBackendOptions& options,
                                         const CudaLibrary& library) {
  CudaNeed need;
  RIVULET_CUDA_RETURN_IF_ERROR(cudaMemGetInfo(&need.free, &need.total));
  const CudaNetwork::Bytes bytes = network.Measure(limits, library);
  need.weights = bytes.weights;
  need.work = bytes.work + CudaRunBlock::MaxBytes(limits);
  need.num_slots = limits.num_slots;
  RIVULET_RETURN_IF_ERROR(need.ChooseContext(config, limits, options));
  need.head_rows = options.head_rows > 0
                       ? std::min(options.head_rows, limits.max_tokens)
                       : CudaOutputs::HeadRows(config, limits, need.HeadBytes(options));
  need.work += CudaOutputs::Bytes(config, need.head_rows);
  return need;
}

}  // namespace rivulet
