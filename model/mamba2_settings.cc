// SPDX-License-Identifier: Apache-2.0
#include "model/mamba2_settings.h"

#include <cmath>
#include <limits>

#include "model/base/error.h"

namespace rivulet {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 24;  // of a dimension

// A number, or {"__float__": "Infinity"}.
absl::StatusOr<float> Limit(const JsonReader& settings, absl::string_view name,
                            const JsonValue& value) {
  const JsonValue* text = value.Find("__float__");
  if (text != nullptr && text->text == "Infinity") return std::numeric_limits<float>::infinity();
  if (value.is_number() && value.number >= 0) return static_cast<float>(value.number);
  return settings.Invalid(name, "holds ", Describe(value),
                          "; allowed: numbers from 0, or infinity");
}

}  // namespace

absl::Status FinishMamba2(JsonReader* settings, absl::string_view groups, absl::string_view heads,
                          ModelConfig* config) {
  if (config->num_heads % config->block().num_groups != 0) {
    return settings->Invalid(groups, "is ", config->block().num_groups, "; ", heads, ", ",
                             config->num_heads, ", does not divide by it");
  }
  config->block().output_gate = true;
  RIVULET_ASSIGN_OR_RETURN(const absl::string_view name,
                           settings->Spelling("time_step_limit", "dt_limit"));
  config->block().dt_min = 0;
  config->block().dt_max = std::numeric_limits<float>::infinity();
  const JsonValue* limit = settings->Find(name);
  if (limit == nullptr) return absl::OkStatus();
  if (limit->kind != JsonValue::Kind::kArray || limit->items.size() != 2) {
    return settings->Invalid(name, "is ", Describe(*limit), "; allowed: an array of 2");
  }
  RIVULET_ASSIGN_OR_RETURN(config->block().dt_min, Limit(*settings, name, limit->items[0]));
  RIVULET_ASSIGN_OR_RETURN(config->block().dt_max, Limit(*settings, name, limit->items[1]));
  if (config->block().dt_min <= config->block().dt_max) return absl::OkStatus();
  return settings->Invalid(name, "has a minimum above its maximum");
}

absl::Status ParseMamba2(JsonReader* settings, ModelConfig* config) {
  // For training: how parameters were drawn.
  settings->Known({"A_init_range", "conv_init", "dt_init_floor", "dt_max", "dt_min",
                   "time_step_floor", "time_step_max", "time_step_min", "time_step_rank"});
  RIVULET_ASSIGN_OR_RETURN(const absl::string_view eps,
                           settings->Spelling("layer_norm_epsilon", "norm_eps"));
  RIVULET_RETURN_IF_ERROR(settings->Positive(eps, &config->norm_eps, 1e-5f));
  if (eps == "layer_norm_epsilon") {
    // transformers 4.44 writes true; only its training reads it.
    settings->Known({"norm_before_gate"});
  } else {
    RIVULET_RETURN_IF_ERROR(settings->Only("norm_before_gate", "false"));
  }
  RIVULET_RETURN_IF_ERROR(settings->Only("hidden_act", R"("silu", "swish")"));
  RIVULET_RETURN_IF_ERROR(settings->Only("rmsnorm", "true"));
  RIVULET_RETURN_IF_ERROR(settings->Only("rms_norm", "true"));
  RIVULET_RETURN_IF_ERROR(settings->Only("D_has_hdim", "false"));
  RIVULET_RETURN_IF_ERROR(settings->Int("num_heads", 1, kMaxSize, &config->num_heads, 128));
  RIVULET_RETURN_IF_ERROR(settings->Int("head_dim", 1, kMaxSize, &config->value_dim, 64));
  RIVULET_RETURN_IF_ERROR(settings->Int("state_size", 1, kMaxSize, &config->key_dim, 128));
  RIVULET_RETURN_IF_ERROR(settings->Int("n_groups", 1, kMaxSize, &config->block().num_groups, 8));
  RIVULET_RETURN_IF_ERROR(settings->Int("conv_kernel", 1, 8, &config->block().conv_width, 4));
  RIVULET_RETURN_IF_ERROR(settings->Bool("use_conv_bias", &config->block().conv_bias, true));
  RIVULET_RETURN_IF_ERROR(settings->Bool("use_bias", &config->block().projection_bias, false));
  config->block().out_bias = config->block().projection_bias;
  double expand = 0;
  RIVULET_RETURN_IF_ERROR(settings->Positive("expand", &expand, 2));
  if (std::floor(config->hidden_size * expand) !=
      double(config->num_heads) * double(config->value_dim)) {
    return settings->Invalid("expand", "is ", expand, ": ", config->hidden_size * expand,
                             " columns are not num_heads, ", config->num_heads,
                             ", times head_dim, ", config->value_dim);
  }
  return FinishMamba2(settings, "n_groups", "num_heads", config);
}

}  // namespace rivulet
