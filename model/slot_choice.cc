// SPDX-License-Identifier: Apache-2.0
#include "model/slot_choice.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "kernels/softmax_attention.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

constexpr int64_t kLeastAutoContext = 2048;

// The largest context, at most `most`, whose state takes at most `bytes`, but at least
// kLeastAutoContext. REQUIRES: the state grows.
int64_t ContextWithin(int64_t bytes, const StateSize& size, int64_t most) {
  const int64_t room = std::max<int64_t>(0, bytes - static_cast<int64_t>(size.fixed));
  const int64_t blocks = room / static_cast<int64_t>(size.per_block);
  return std::min(most, std::max(kLeastAutoContext, blocks * kernels::kCacheBlock));
}

}  // namespace

SlotChoice AutoSlots(int64_t left_bytes, size_t slot_bytes, absl::string_view memory) {
  const int64_t fit = left_bytes / 2 / static_cast<int64_t>(slot_bytes);
  if (fit >= kMostAutoSlots)
    return {kMostAutoSlots, absl::StrCat("auto: at most ", kMostAutoSlots)};
  return {static_cast<int>(std::max(fit, int64_t{1})),
          absl::StrCat("auto: half of the ", left_bytes, " bytes left of ", memory)};
}

int64_t LongestContext(const ModelConfig& config) {
  return config.AtMost(config.trained_positions > 0 ? config.trained_positions : kMostContext);
}

int SlotRoom::SlotsAt(int64_t context) const {
  const auto slot = static_cast<int64_t>(size.At(context));
  return static_cast<int>(
      std::clamp<int64_t>((left_bytes - guards * slot) / 2 / slot, 0, kMostAutoSlots));
}

std::optional<ContextChoice> ParseContextChoice(absl::string_view text) {
  ContextChoice choice;
  if (text == "auto") return choice;
  if (absl::ConsumePrefix(&text, "auto:")) {
    if (!absl::SimpleAtoi(text, &choice.slots.emplace())) return std::nullopt;
  } else if (!absl::SimpleAtoi(text, &choice.tokens.emplace())) {
    return std::nullopt;
  }
  return choice;
}

std::string ContextChoiceName(const ContextChoice& choice) {
  if (choice.tokens) return absl::StrCat(*choice.tokens);
  return choice.slots ? absl::StrCat("auto:", *choice.slots) : "auto";
}

absl::Status CheckContextChoice(const ContextChoice& choice) {
  const bool fits = choice.tokens  ? *choice.tokens >= 1 && *choice.tokens <= kMostContext
                    : choice.slots ? *choice.slots >= 1 && *choice.slots <= kMostAutoSlots
                                   : true;
  if (fits) return absl::OkStatus();
  return InvalidField(
      "OPTION_OUT_OF_RANGE", "max-context",
      absl::StrCat("max-context is ", ContextChoiceName(choice), "; allowed: auto, or 1 to ",
                   kMostContext, ", or auto:SLOTS with 1 to ", kMostAutoSlots, " slots"));
}

int64_t AutoContext(int64_t left_bytes, const StateSize& size, int64_t most, int slots) {
  if (size.per_block == 0) return 0;
  return ContextWithin(left_bytes / (3 * int64_t{slots} + 1), size, most);
}

absl::StatusOr<int64_t> ContextForSlots(int slots, const SlotRoom& room) {
  const int64_t states = 2 * int64_t{slots} + room.guards;
  const int64_t context =
      room.size.per_block == 0 ? 0 : ContextWithin(room.left_bytes / states, room.size, room.most);
  const int fit = std::max(1, room.SlotsAt(context));  // as AutoSlots
  if (fit >= slots) return context;
  return MakeError(
      absl::StatusCode::kResourceExhausted,
      absl::StrCat("max-context is auto:", slots, ", but only ", fit,
                   fit == 1 ? " slot fits" : " slots fit",
                   context == 0 ? "" : absl::StrCat(" with a context of ", context),
                   ": slots take half of the ", room.left_bytes, " bytes left of ", room.memory),
      {"OUT_OF_MEMORY", "max-context", {}});
}

std::vector<ContextSlots> SlotsByContext(const SlotRoom& room) {
  std::vector<ContextSlots> table;
  if (room.size.per_block == 0) return table;
  int64_t context = std::min(kDefaultContext, room.most);
  while (true) {
    table.push_back({context, room.SlotsAt(context)});
    if (context == room.most || table.back().slots == 0) return table;
    context = std::min(4 * context, room.most);
  }
}

std::string SlotsByContextText(const std::vector<ContextSlots>& table) {
  return absl::StrJoin(table, ", ", [](std::string* out, const ContextSlots& row) {
    absl::StrAppend(out, row.context, ": ");
    absl::StrAppend(out, row.slots == 0 ? "none" : absl::StrCat(row.slots));
  });
}

}  // namespace rivulet
