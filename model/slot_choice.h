// SPDX-License-Identifier: Apache-2.0
// The number of slots of a backend, and of positions of a slot, if the configuration gives no
// number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/backend.h"
#include "model/backend_options.h"
#include "model/config.h"
#include "model/state_parts.h"

namespace rivulet {

struct SlotChoice {
  int num_slots = 0;
  std::string words;  // the reason; human-readable
};

// The number of slots that fit into half of `left_bytes`, which weights and work space leave of
// `memory` ("the device's 100 bytes"); at most kMostAutoSlots, and at least one, even if it does
// not fit. The other half is for kept states, and for parked and preempted replies, which take
// memory later.
SlotChoice AutoSlots(int64_t left_bytes, size_t slot_bytes, absl::string_view memory);

// "auto", "auto:SLOTS" or an integer, of any size; nullopt: another text.
std::optional<ContextChoice> ParseContextChoice(absl::string_view text);
std::string ContextChoiceName(const ContextChoice& choice);
// OK, or INVALID_ARGUMENT (OPTION_OUT_OF_RANGE).
absl::Status CheckContextChoice(const ContextChoice& choice);

// The number of positions of each slot, at most `most`. `left_bytes` must hold 3 * slots + 1
// states: of the slots, of 2 * slots replies that gave up their slots, and one kept state. But at
// least 2,048, or `most` if that is less: then there are fewer slots. 0: a state does not grow.
int64_t AutoContext(int64_t left_bytes, const StateSize& size, int64_t most, int slots = 16);

// The positions that a model was trained for, or else may have: the longest context that is chosen
// or shown. A longer one can be set, up to the model's limit.
int64_t LongestContext(const ModelConfig& config);

// What AutoSlots chooses from: memory, and the states in it.
struct SlotRoom {
  int64_t left_bytes = 0;
  StateSize size;      // of a slot
  int64_t most = 0;    // positions of a slot
  std::string memory;  // as for AutoSlots
  int guards = 0;      // slots that AutoSlots does not count

  // 0: none fits.
  int SlotsAt(int64_t context) const;
};

// The largest number of positions at which AutoSlots gives `slots` slots; 0: a state does not grow.
// Errors: RESOURCE_EXHAUSTED (OUT_OF_MEMORY): fewer slots fit even with 2,048 positions, or
// room.most if that is less.
absl::StatusOr<int64_t> ContextForSlots(int slots, const SlotRoom& room);

// The slots at contexts of 8,192, four times as many and so on, and at room.most, up to the first
// at which none fits. Empty: a state does not grow.
std::vector<ContextSlots> SlotsByContext(const SlotRoom& room);
// "8192: 24, 32768: 6, 131072: none"
std::string SlotsByContextText(const std::vector<ContextSlots>& table);

}  // namespace rivulet
