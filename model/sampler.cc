// SPDX-License-Identifier: Apache-2.0
#include "model/sampler.h"

#include <cmath>
#include <set>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

class Checker {
 public:
  explicit Checker(absl::string_view prefix) : prefix_(prefix) {}

  absl::Status Bad(absl::string_view name, absl::string_view held,
                   absl::string_view allowed) const {
    const std::string field = absl::StrCat(prefix_, name);
    return InvalidField("INVALID_SAMPLING", field,
                        absl::StrCat(field, " is ", held, "; allowed: ", allowed));
  }
  // Fails for NaN, as no comparison with it holds.
  absl::Status InRange(absl::string_view name, float value, float min, float max) const {
    if (value >= min && value <= max) return absl::OkStatus();
    return Bad(name, absl::StrCat(value), absl::StrCat("a number from ", min, " to ", max));
  }
  absl::Status Finite(absl::string_view name, float value, bool zero_allowed) const {
    if (std::isfinite(value) && (value > 0 || (value == 0 && zero_allowed))) {
      return absl::OkStatus();
    }
    return Bad(name, absl::StrCat(value),
               zero_allowed ? "0 or a finite positive number" : "a finite positive number");
  }

 private:
  const absl::string_view prefix_;
};

absl::Status CheckMixture(const SamplingParams& params, const Checker& check) {
  absl::Status status;
  const auto visit = [&](absl::string_view name, const auto& value, const auto& unset) {
    if (!status.ok() || name == "temperature" || name == "seed" || value == unset) return;
    std::string held;
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>) {
      held = absl::StrCat(value);
    } else {
      held = absl::StrCat(value.size(), " entries");
    }
    status = check.Bad(name, held,
                       "its default, because the model's head is a mixture of logistics: only "
                       "temperature and seed may be set");
  };
  const SamplingParams unset;
  VisitFields(visit, params, unset);
  return status;
}

absl::Status CheckLogitBias(const SamplingParams& params, const ModelConfig& config,
                            const Checker& check) {
  std::set<int32_t> seen;
  for (const auto& [token, bias] : params.logit_bias) {
    if (token < 0 || token >= config.num_output_tokens()) {
      return check.Bad("logit_bias", absl::StrCat("for token ", token),
                       absl::StrCat("token ids from 0 to ", config.num_output_tokens() - 1));
    }
    if (!seen.insert(token).second) {
      return check.Bad("logit_bias", absl::StrCat("given twice for token ", token),
                       "one bias per token");
    }
    RIVULET_RETURN_IF_ERROR(
        check.InRange(absl::StrCat("logit_bias[", token, "]"), bias, -100, 100));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateSampling(const SamplingParams& params, const ModelConfig& config,
                              absl::string_view field_prefix) {
  const Checker check(field_prefix);
  RIVULET_RETURN_IF_ERROR(check.Finite("temperature", params.temperature, true));
  if (config.output.type == OutputType::kMixtureOfLogistics) return CheckMixture(params, check);
  if (params.top_k < 0) {
    return check.Bad("top_k", absl::StrCat(params.top_k), "0 (all tokens) or a positive integer");
  }
  if (!(params.top_p > 0 && params.top_p <= 1)) {
    return check.Bad("top_p", absl::StrCat(params.top_p), "a number above 0 and at most 1");
  }
  RIVULET_RETURN_IF_ERROR(check.InRange("min_p", params.min_p, 0, 1));
  RIVULET_RETURN_IF_ERROR(check.Finite("repetition_penalty", params.repetition_penalty, false));
  RIVULET_RETURN_IF_ERROR(check.InRange("frequency_penalty", params.frequency_penalty, -2, 2));
  RIVULET_RETURN_IF_ERROR(check.InRange("presence_penalty", params.presence_penalty, -2, 2));
  return CheckLogitBias(params, config, check);
}

}  // namespace rivulet
