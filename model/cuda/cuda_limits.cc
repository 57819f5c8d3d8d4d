// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_limits.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/loading/packed_weights.h"
#include "model/slot_choice.h"

namespace rivulet {

absl::Status CheckCudaOptions(const CudaBackendOptions& options) {
  const auto check = [](absl::string_view field, int value, int low, int high) {
    if (value >= low && value <= high) return absl::OkStatus();
    return InvalidField("OPTION_OUT_OF_RANGE", field,
                        absl::StrCat(field, " is ", value, "; allowed: ", low, " to ", high));
  };
  RIVULET_RETURN_IF_ERROR(check("num_slots", options.num_slots.value_or(1), 1, 1 << 24));
  RIVULET_RETURN_IF_ERROR(check("max_rows", options.max_rows, 0, 1 << 16));
  RIVULET_RETURN_IF_ERROR(check("max_tokens", options.max_tokens, 0, 1 << 20));
  RIVULET_RETURN_IF_ERROR(check("max_steps", options.max_steps, 1, 1 << 10));
  RIVULET_RETURN_IF_ERROR(check("many_rows", options.many_rows, 1, 1 << 20));
  RIVULET_RETURN_IF_ERROR(check("library_rows", options.library_rows, 1, 1 << 20));
  RIVULET_RETURN_IF_ERROR(check("head_rows", options.head_rows, 0, 1 << 20));
  RIVULET_RETURN_IF_ERROR(check("preferred_steps", options.preferred_steps, 1, options.max_steps));
  RIVULET_RETURN_IF_ERROR(CheckContextChoice(options.max_context));
  if (options.patience > absl::ZeroDuration()) return absl::OkStatus();
  return InvalidField("OPTION_OUT_OF_RANGE", "patience",
                      absl::StrCat("patience is ", absl::FormatDuration(options.patience),
                                   "; allowed: more than 0"));
}

WeightChoice CudaWeightChoice(const Model& model, const CudaBackendOptions& options) {
  return options.weights.quantized() ? options.weights : WeightChoice(NumbersOnly(model));
}

BackendLimits CudaLimits(const ModelConfig& config, const CudaBackendOptions& options,
                         const CudaDevice& device, int numerics_version) {
  constexpr int kMostRows = 4096, kLeastTokens = 8192;
  BackendLimits limits;
  limits.num_slots = options.num_slots.value_or(kMostAutoSlots);
  limits.max_rows = options.max_rows > 0 ? options.max_rows : std::min(limits.num_slots, kMostRows);
  limits.max_tokens =
      std::max(options.max_tokens > 0 ? options.max_tokens : kLeastTokens, limits.max_rows);
  limits.max_steps = options.max_steps;
  limits.preferred_steps = options.preferred_steps;
  limits.preferred_prefill_tokens = limits.max_tokens;
  limits.state = config.state().size();
  limits.context = config.context;
  if (config.context > 0 && options.max_context.tokens) {
    limits.context = config.AtMost(*options.max_context.tokens);
  }
  limits.bytes_per_slot = limits.state.At(limits.context);
  const std::string type = options.weights.quantized()
                               ? WeightNumerics(ResolveHead(options.weights, config))
                           : options.precision == CudaPrecision::kFloat32 ? "float32"
                                                                          : "default";
  limits.plan = options.graphs ? "graphs" : "launches without graphs";
  limits.numerics_id = absl::StrCat("cuda-", type, "-graph-sm", device.sm, "-", numerics_version);
  return limits;
}

}  // namespace rivulet
