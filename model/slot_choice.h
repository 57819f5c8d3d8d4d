// SPDX-License-Identifier: Apache-2.0
// How many slots a backend makes where the configuration gives no number.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace rivulet {

inline constexpr int kMostAutoSlots = 256;

struct SlotChoice {
  int num_slots = 0;
  std::string words;  // why so many; human-readable
};

// As many as fit into half of `left_bytes`, what weights and work space leave of `memory` ("the
// device's 100 bytes"); at most kMostAutoSlots, and at least one, whether it fits or not. The other
// half is for kept states and paused replies, which take memory later.
inline SlotChoice AutoSlots(int64_t left_bytes, size_t slot_bytes, absl::string_view memory) {
  const int64_t fit = left_bytes / 2 / static_cast<int64_t>(slot_bytes);
  if (fit >= kMostAutoSlots)
    return {kMostAutoSlots, absl::StrCat("auto: at most ", kMostAutoSlots)};
  return {static_cast<int>(std::max(fit, int64_t{1})),
          absl::StrCat("auto: half of the ", left_bytes, " bytes left of ", memory)};
}

}  // namespace rivulet
