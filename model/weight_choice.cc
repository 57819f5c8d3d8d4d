// SPDX-License-Identifier: Apache-2.0
#include "model/weight_choice.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"

namespace rivulet {
namespace {

// In the order of WeightPrecision.
constexpr const char* kNames[] = {"auto", "f32", "f16", "bf16", "int8", "int4"};

std::optional<WeightPrecision> PrecisionOf(absl::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<WeightPrecision>(i);
  }
  return std::nullopt;
}

}  // namespace

WeightChoice ResolveHead(const WeightChoice& choice, const ModelConfig& config) {
  WeightChoice resolved = choice;
  if (choice.head.has_value()) return resolved;
  resolved.head = choice.layers;
  if (choice.layers == WeightPrecision::kInt4) resolved.head = WeightPrecision::kInt8;
  if (choice.quantized() && config.output.type == OutputType::kMixtureOfLogistics) {
    resolved.head = WeightPrecision::kAuto;
  }
  return resolved;
}

absl::StatusOr<WeightChoice> ParseWeightChoice(absl::string_view text) {
  const size_t comma = text.find(',');
  const std::optional<WeightPrecision> layers = PrecisionOf(text.substr(0, comma));
  std::optional<WeightPrecision> head;
  absl::string_view rest = comma == text.npos ? "" : text.substr(comma + 1);
  if (absl::ConsumePrefix(&rest, "head=")) head = PrecisionOf(rest);
  if (!layers.has_value() || (comma != text.npos && !head.has_value())) {
    return InvalidField("CONFIG_INVALID", "weights",
                        absl::StrCat("weights is ", Quoted(text),
                                     "; allowed: auto, f32, f16, bf16, int8 or int4, and "
                                     "\",head=\" with one of them, as in int4,head=f16"));
  }
  WeightChoice choice(*layers);
  choice.head = head;
  return choice;
}

std::string WeightChoiceName(const WeightChoice& choice) {
  const char* const layers = kNames[static_cast<size_t>(choice.layers)];
  if (!choice.head.has_value()) return layers;
  return absl::StrCat(layers, ",head=", kNames[static_cast<size_t>(*choice.head)]);
}

}  // namespace rivulet
