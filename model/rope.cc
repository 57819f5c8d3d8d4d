// SPDX-License-Identifier: Apache-2.0
#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <string>

#include "model/base/error.h"
#include "model/base/json_reader.h"

namespace rivulet {
namespace {

constexpr double kPi = std::numbers::pi;

// The length before scaling. `max_positions`: the default; 0: the setting is required.
absl::Status ReadTrained(JsonReader* object, double max_positions, double* trained) {
  constexpr char kName[] = "original_max_position_embeddings";
  return max_positions > 0 ? object->Positive(kName, trained, max_positions)
                           : object->Positive(kName, trained);
}

// [transformers, modeling_rope_utils.py]: between wavelengths of the trained length over high and
// low factor, from full to divided frequencies.
absl::Status ApplyLlama3(JsonReader* object, double factor, double max_positions,
                         RopeConfig* rope) {
  double low = 0, high = 0, trained = 0;
  RIVULET_RETURN_IF_ERROR(object->Positive("low_freq_factor", &low));
  RIVULET_RETURN_IF_ERROR(object->Positive("high_freq_factor", &high));
  RIVULET_RETURN_IF_ERROR(ReadTrained(object, max_positions, &trained));
  if (!(high > low)) {
    return object->Invalid("high_freq_factor", "is ", high, "; allowed: above low_freq_factor, ",
                           low);
  }
  for (double& f : rope->frequencies) {
    const double wavelength = 2 * kPi / f;
    const double smooth = std::clamp((trained / wavelength - low) / (high - low), 0.0, 1.0);
    f = (1 - smooth) * f / factor + smooth * f;
  }
  return absl::OkStatus();
}

struct Yarn {
  double beta_fast = 32, beta_slow = 1, trained = 0;
  std::optional<double> attention_factor, mscale, mscale_all_dim;
  bool truncate = true;
};

absl::Status ReadYarn(JsonReader* object, double max_positions, Yarn* yarn) {
  RIVULET_RETURN_IF_ERROR(object->Positive("beta_fast", &yarn->beta_fast, 32));
  RIVULET_RETURN_IF_ERROR(object->Positive("beta_slow", &yarn->beta_slow, 1));
  RIVULET_RETURN_IF_ERROR(ReadTrained(object, max_positions, &yarn->trained));
  for (const auto& [name, out] : {std::pair{"attention_factor", &yarn->attention_factor},
                                  {"mscale", &yarn->mscale},
                                  {"mscale_all_dim", &yarn->mscale_all_dim}}) {
    if (object->Find(name) == nullptr) continue;
    double value = 0;
    RIVULET_RETURN_IF_ERROR(object->Positive(name, &value));
    *out = value;
  }
  return object->Bool("truncate", &yarn->truncate, true);
}

// [YaRN: Peng 2023, eq. 23 and 24]
absl::Status ApplyYarn(JsonReader* object, double factor, double theta, double max_positions,
                       RopeConfig* rope) {
  Yarn yarn;
  RIVULET_RETURN_IF_ERROR(ReadYarn(object, max_positions, &yarn));
  const double n = 2.0 * double(rope->frequencies.size());
  const auto turns = [&](double beta) {
    return n * std::log(yarn.trained / (2 * kPi * beta)) / (2 * std::log(theta));
  };
  double low = turns(yarn.beta_fast), high = turns(yarn.beta_slow);
  if (yarn.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, n - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < rope->frequencies.size(); ++i) {
    const double ramp = std::clamp((double(i) - low) / (high - low), 0.0, 1.0);
    rope->frequencies[i] *= ramp / factor + (1 - ramp);
  }
  const auto grown = [&](double scale) {
    return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1;
  };
  rope->factor = yarn.attention_factor.value_or(
      yarn.mscale && yarn.mscale_all_dim ? grown(*yarn.mscale) / grown(*yarn.mscale_all_dim)
                                         : grown(1));
  return absl::OkStatus();
}

// The frequencies of the first `partial` of a head, before any type changes them. `object`: the
// object with the setting, for errors.
absl::Status SetFrequencies(const JsonReader& object, int head_dim, double theta, double partial,
                            RopeConfig* rope) {
  const int dims = int(head_dim * partial);
  if (partial > 1 || dims < 2 || dims % 2 != 0) {
    return object.Invalid("partial_rotary_factor", "is ", partial, ", of heads of ", head_dim,
                          " values; allowed: a share with an even number of values");
  }
  rope->frequencies = RopeFrequencies(theta, dims);
  return absl::OkStatus();
}

enum class RopeType : uint8_t { kDefault, kLinear, kLlama3, kYarn };

// Angles must stay in the range of SinCos.
absl::Status AtLeastOne(const JsonReader& object, const char* name, double value) {
  if (value >= 1) return absl::OkStatus();
  return object.Invalid(name, "is ", value, "; allowed: at least 1");
}

// `object`: rope_parameters or rope_scaling.
absl::Status ReadRope(JsonReader* object, const RopeDefaults& defaults, double theta,
                      double partial, RopeConfig* rope) {
  RIVULET_RETURN_IF_ERROR(object->Positive("rope_theta", &theta, theta));
  RIVULET_RETURN_IF_ERROR(AtLeastOne(*object, "rope_theta", theta));
  RIVULET_RETURN_IF_ERROR(object->Positive("partial_rotary_factor", &partial, partial));
  const char* const name = object->Find("rope_type") == nullptr && object->Find("type") != nullptr
                               ? "type"
                               : "rope_type";
  RIVULET_RETURN_IF_ERROR(object->Only(name, R"("default", "linear", "llama3", "yarn", null)"));
  RopeType type = RopeType::kDefault;
  RIVULET_RETURN_IF_ERROR(object->Choice<RopeType>(name,
                                                   {{"default", RopeType::kDefault},
                                                    {"linear", RopeType::kLinear},
                                                    {"llama3", RopeType::kLlama3},
                                                    {"yarn", RopeType::kYarn}},
                                                   &type, RopeType::kDefault));
  if (type == RopeType::kDefault && defaults.partial == 1) partial = 1;
  RIVULET_RETURN_IF_ERROR(SetFrequencies(*object, defaults.head_dim, theta, partial, rope));
  if (type == RopeType::kDefault) return absl::OkStatus();
  double factor = 1;
  RIVULET_RETURN_IF_ERROR(object->Positive("factor", &factor));
  RIVULET_RETURN_IF_ERROR(AtLeastOne(*object, "factor", factor));
  const double trained = defaults.max_positions;
  if (type == RopeType::kLlama3) return ApplyLlama3(object, factor, trained, rope);
  if (type == RopeType::kYarn) return ApplyYarn(object, factor, theta, trained, rope);
  for (double& f : rope->frequencies) f /= factor;
  return absl::OkStatus();
}

}  // namespace

std::vector<double> RopeFrequencies(double base, int n) {
  std::vector<double> frequencies(size_t(n) / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(base, -2.0 * double(i) / n);
  }
  return frequencies;
}

absl::Status ParseRope(JsonReader* settings, const RopeDefaults& defaults, RopeConfig* rope) {
  double theta = defaults.theta, partial = defaults.partial;
  RIVULET_RETURN_IF_ERROR(settings->Positive("rope_theta", &theta, theta));
  RIVULET_RETURN_IF_ERROR(AtLeastOne(*settings, "rope_theta", theta));
  RIVULET_RETURN_IF_ERROR(settings->Positive("partial_rotary_factor", &partial, partial));
  // As in transformers, rope_scaling has precedence over rope_parameters unless it is empty.
  settings->Known({"rope_scaling", "rope_parameters"});
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const JsonValue* const value = settings->Find(name);
    if (value == nullptr || (value->kind == JsonValue::Kind::kObject && value->items.empty())) {
      continue;
    }
    RIVULET_ASSIGN_OR_RETURN(JsonReader object, settings->Object(name));
    // For text the three positions of MRoPE are equal, so its sections have no effect.
    object.Known({"mrope_interleaved", "mrope_section"});
    RIVULET_RETURN_IF_ERROR(ReadRope(&object, defaults, theta, partial, rope));
    return object.CheckNoOthers();
  }
  if (defaults.partial == 1) partial = 1;
  return SetFrequencies(*settings, defaults.head_dim, theta, partial, rope);
}

}  // namespace rivulet
