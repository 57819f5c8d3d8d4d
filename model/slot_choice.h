// SPDX-License-Identifier: Apache-2.0
// The number of slots of a backend, and of positions of a slot, if the configuration gives no
// number.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/softmax_attention.h"
#include "model/backend_options.h"
#include "model/base/error.h"
#include "model/state_parts.h"

namespace rivulet {

inline constexpr int kMostAutoSlots = 256;

struct SlotChoice {
  int num_slots = 0;
  std::string words;  // the reason; human-readable
};

// The number of slots that fit into half of `left_bytes`, which weights and work space leave of
// `memory` ("the device's 100 bytes"); at most kMostAutoSlots, and at least one, even if it does
// not fit. The other half is for kept states, and for parked and preempted replies, which take
// memory later.
inline SlotChoice AutoSlots(int64_t left_bytes, size_t slot_bytes, absl::string_view memory) {
  const int64_t fit = left_bytes / 2 / static_cast<int64_t>(slot_bytes);
  if (fit >= kMostAutoSlots)
    return {kMostAutoSlots, absl::StrCat("auto: at most ", kMostAutoSlots)};
  return {static_cast<int>(std::max(fit, int64_t{1})),
          absl::StrCat("auto: half of the ", left_bytes, " bytes left of ", memory)};
}

// OK, or INVALID_ARGUMENT (OPTION_OUT_OF_RANGE). nullopt: AutoContext decides.
inline absl::Status CheckMaxContext(std::optional<int64_t> max_context) {
  if (!max_context || (*max_context >= 1 && *max_context <= kMostContext)) return absl::OkStatus();
  return InvalidField(
      "OPTION_OUT_OF_RANGE", "max_context",
      absl::StrCat("max_context is ", *max_context, "; allowed: 1 to ", kMostContext));
}

// The number of positions of each slot, at most `most`. `left_bytes` must hold 3 * slots + 1
// states: of the slots, of 2 * slots replies that gave up their slots, and one kept state. But at
// least 2,048, or `most` if that is less: then there are fewer slots. 0: a state does not grow.
inline int64_t AutoContext(int64_t left_bytes, const StateSize& size, int64_t most,
                           int slots = 16) {
  if (size.per_block == 0) return 0;
  constexpr int64_t kLeast = 2048;
  const int64_t states = 3 * int64_t{slots} + 1;
  const int64_t room = left_bytes / states - static_cast<int64_t>(size.fixed);
  const int64_t blocks = std::max<int64_t>(0, room) / static_cast<int64_t>(size.per_block);
  return std::min(most, std::max(kLeast, blocks * kernels::kCacheBlock));
}

}  // namespace rivulet
