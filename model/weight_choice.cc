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

// kernels/quantized.cc: the version of the rounding of weights
int QuantizerVersion(WeightPrecision precision) {
  return precision == WeightPrecision::kInt4 ? 2 : 1;
}

std::string TypeNumerics(WeightPrecision precision) {
  if (precision == WeightPrecision::kAuto) return "exact";
  const char* const name = kNames[static_cast<size_t>(precision)];
  return precision < WeightPrecision::kInt8 ? name
                                            : absl::StrCat(name, "q", QuantizerVersion(precision));
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

std::string WeightNumerics(const WeightChoice& choice) {
  std::string name = TypeNumerics(choice.layers);
  if (choice.head != choice.layers) absl::StrAppend(&name, "-head", TypeNumerics(*choice.head));
  return name;
}

absl::Status CheckCudaWeights(const WeightChoice& choice, bool float32) {
  if (!choice.quantized()) return absl::OkStatus();
  const bool int4 =
      choice.layers == WeightPrecision::kInt4 || choice.head == WeightPrecision::kInt4;
  if (!int4 && !float32) return absl::OkStatus();
  return InvalidField(
      "CONFIG_INVALID", "weights",
      absl::StrCat("weights is ", Quoted(WeightChoiceName(choice)), ", which the backend cuda ",
                   int4 ? "does not have; set backend to cpu, or weights to auto or int8"
                        : "has with the default precision only; set precision to default, or "
                          "weights to auto"));
}

}  // namespace rivulet
