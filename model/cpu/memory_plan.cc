// SPDX-License-Identifier: Apache-2.0
#include "model/cpu/memory_plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/thread_team.h"
#include "model/cpu/cpu_predictor.h"
#include "model/cpu/cpu_replay.h"
#include "model/slot_choice.h"

namespace rivulet {

absl::Status CpuOutOfMemory(absl::string_view message) {
  return MakeError(absl::StatusCode::kResourceExhausted, message, {"OUT_OF_MEMORY", "slots", {}});
}

namespace {

// Of all rows that may have drafts; `guesses`: there is a predictor.
size_t DraftBytes(const CpuBackendOptions& options, const ModelConfig& config, bool guesses) {
  if (options.max_drafts == 0) return 0;
  const int threads = options.threads > 0 ? options.threads : UsableCores();
  const StateParts parts = config.state();
  const size_t keys =
      guesses ? StateParts(*parts.attention).size().At(CpuPredictor::TokensOf(config)) : 0;
  return size_t(SpeculatingRows(options)) *
             CpuReplay::Bytes(config, parts, 1 + options.max_drafts, threads) +
         keys;
}

}  // namespace

int SpeculatingRows(const CpuBackendOptions& options) {
  return std::min(options.speculating_rows, options.num_slots.value_or(options.speculating_rows));
}

absl::StatusOr<int64_t> ChooseCpuContext(const CpuBackendOptions& options,
                                         const ModelConfig& config, int64_t left_bytes,
                                         const std::string& whole) {
  const StateSize size = config.state().size();
  if (const auto& tokens = options.max_context.tokens; tokens) {
    return size.per_block == 0 ? 0 : config.AtMost(*tokens);
  }
  if (const auto& slots = options.max_context.slots; slots) {
    return ContextForSlots(*slots, {left_bytes, size, LongestContext(config), whole});
  }
  return AutoContext(left_bytes, size, config.context, options.num_slots.value_or(16));
}

absl::Status PlanCpuMemory(const CpuBackendOptions& options, const ModelConfig& config,
                           const HostMemory& memory, BackendLimits* limits) {
  const std::string whole = absl::StrCat(memory.limited_by, "'s ", memory.total, " bytes");
  const size_t weight_bytes = limits->weight_bytes;
  const size_t draft_bytes = limits->drafts.bytes =
      DraftBytes(options, config, limits->drafts.guesses > 0);
  const int64_t left =
      std::min(memory.total - int64_t(weight_bytes) - options.reserved_bytes, memory.available) -
      int64_t(draft_bytes);
  limits->state = config.state().size();
  RIVULET_ASSIGN_OR_RETURN(limits->context, ChooseCpuContext(options, config, left, whole));
  limits->contexts = SlotsByContext({left, limits->state, LongestContext(config), whole});
  const size_t slot_bytes = limits->bytes_per_slot = limits->state.At(limits->context);
  SlotChoice choice = {options.num_slots.value_or(0), "as set"};
  if (!options.num_slots.has_value()) choice = AutoSlots(left, slot_bytes, whole);
  limits->num_slots = choice.num_slots;
  limits->slots_choice = std::move(choice.words);
  const auto total = size_t(memory.total);
  const size_t others = weight_bytes + draft_bytes;
  const double needed = double(others) + double(slot_bytes) * (choice.num_slots + 1.0);
  if (needed <= double(total)) return absl::OkStatus();
  const size_t fit = total > others ? (total - others) / slot_bytes : 0;
  const std::string context =
      limits->context == 0
          ? ""
          : absl::StrCat(", each with room for a context of ", limits->context, " tokens,");
  const std::string drafts = draft_bytes == 0
                                 ? ""
                                 : absl::StrCat(draft_bytes, " bytes for ",
                                                SpeculatingRows(options), " rows with drafts, ");
  return CpuOutOfMemory(absl::StrCat("weights of ", weight_bytes,
                                     drafts.empty() ? " bytes and " : " bytes, ", drafts,
                                     choice.num_slots, " slots of ", slot_bytes, " bytes", context,
                                     " exceed ", whole, "; ", fit, " slots would fit"));
}

}  // namespace rivulet
