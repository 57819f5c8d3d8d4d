// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_settings.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"

namespace rivulet {

const GgufValue* GgufSettings::Find(absl::string_view key) {
  const std::string name = absl::StrCat(architecture_, ".", key);
  known_[name] = true;
  const auto found = metadata_.find(name);
  return found == metadata_.end() ? nullptr : &found->second;
}

absl::Status GgufSettings::Int(absl::string_view key, int64_t low, int64_t high, int64_t* out,
                               std::optional<int64_t> fallback) {
  const GgufValue* const value = Find(key);
  if (value == nullptr && !fallback) return Invalid(key, "is missing");
  const std::optional<int64_t> integer = value == nullptr ? fallback : value->Integer();
  if (value != nullptr && (!integer || *integer < low || *integer > high)) {
    return Invalid(key, absl::StrCat("is ", value->Describe(), "; allowed: ", low, " to ", high));
  }
  *out = *integer;
  return absl::OkStatus();
}

absl::Status GgufSettings::Positive(absl::string_view key, float* out,
                                    std::optional<float> fallback) {
  const GgufValue* const value = Find(key);
  if (value == nullptr) {
    if (!fallback) return Invalid(key, "is missing");
    *out = *fallback;
    return absl::OkStatus();
  }
  const std::optional<double> number = value->Number();
  if (!number || !(static_cast<float>(*number) > 0) ||
      !std::isfinite(static_cast<float>(*number))) {
    return Invalid(key, absl::StrCat("is ", value->Describe(), "; allowed: numbers above 0"));
  }
  *out = static_cast<float>(*number);
  return absl::OkStatus();
}

absl::Status GgufSettings::Bool(absl::string_view key, bool* out, bool fallback) {
  const GgufValue* const value = Find(key);
  *out = value == nullptr ? fallback : value->Bool().value_or(fallback);
  if (value == nullptr || value->Bool()) return absl::OkStatus();
  return Invalid(key, absl::StrCat("is ", value->Describe(), "; allowed: true and false"));
}

absl::Status GgufSettings::PerLayer(absl::string_view key, int64_t layers,
                                    std::vector<int64_t>* out) {
  const GgufValue* const value = Find(key);
  if (value == nullptr) return Invalid(key, "is missing");
  auto each = value->Integers();
  if (const auto one = value->Integer()) each.emplace(static_cast<size_t>(layers), *one);
  const auto in_range = [](int64_t n) { return n >= 0 && n <= kMostGgufSize; };
  if (!each || std::ssize(*each) != layers || !std::all_of(each->begin(), each->end(), in_range)) {
    return Invalid(key, absl::StrCat("is ", value->Describe(), "; allowed: 0 to ", kMostGgufSize,
                                     ", for each of the ", layers, " layers or for all"));
  }
  *out = *std::move(each);
  return absl::OkStatus();
}

absl::Status GgufSettings::PerLayer(absl::string_view key, int64_t layers, std::vector<bool>* out) {
  const GgufValue* const value = Find(key);
  if (value == nullptr) return Invalid(key, "is missing");
  auto each = value->Bools();
  if (const auto one = value->Bool()) each.emplace(static_cast<size_t>(layers), *one);
  if (!each || std::ssize(*each) != layers) {
    return Invalid(key,
                   absl::StrCat("is ", value->Describe(), "; allowed: true or false, for each ",
                                "of the ", layers, " layers or for all"));
  }
  *out = *std::move(each);
  return absl::OkStatus();
}

absl::Status GgufSettings::Only(absl::string_view key, int64_t only) {
  const GgufValue* const value = Find(key);
  if (value == nullptr || value->Integer() == only) return absl::OkStatus();
  return Unsupported(key, absl::StrCat("is ", value->Describe(), "; supported: ", only));
}

absl::Status GgufSettings::CheckNoOthers() const {
  const std::string prefix = absl::StrCat(architecture_, ".");
  for (const auto& [name, value] : metadata_) {
    if (!absl::StartsWith(name, prefix) || known_.contains(name)) continue;
    return Unsupported(name.substr(prefix.size()),
                       absl::StrCat("is ", value.Describe(), "; it is not known here"));
  }
  return absl::OkStatus();
}

absl::Status GgufSettings::About(absl::string_view reason, absl::string_view key,
                                 absl::string_view what) const {
  const std::string name = absl::StrCat(architecture_, ".", key);
  return InvalidField(reason, Escaped(name), absl::StrCat(Escaped(name), " ", what));
}

absl::Status ReadGgufSsm(GgufSettings* settings, GgufSsm* ssm) {
  RIVULET_RETURN_IF_ERROR(settings->Int("ssm.inner_size", 1, kMostGgufSize, &ssm->inner));
  RIVULET_RETURN_IF_ERROR(settings->Int("ssm.time_step_rank", 1, kMostGgufSize, &ssm->heads));
  RIVULET_RETURN_IF_ERROR(settings->Int("ssm.group_count", 1, kMostGgufSize, &ssm->groups));
  RIVULET_RETURN_IF_ERROR(settings->Int("ssm.state_size", 1, kMostGgufSize, &ssm->state));
  RIVULET_RETURN_IF_ERROR(settings->Int("ssm.conv_kernel", 1, 8, &ssm->width));
  if (ssm->inner % ssm->heads == 0) return absl::OkStatus();
  return settings->Invalid(
      "ssm.time_step_rank",
      absl::StrCat("is ", ssm->heads, "; ssm.inner_size, ", ssm->inner, ", does not divide by it"));
}

double GgufShare(int64_t n, int64_t of) {
  double share = static_cast<double>(n) / static_cast<double>(of);
  while (std::floor(static_cast<double>(of) * share) < static_cast<double>(n)) {
    share = std::nextafter(share, HUGE_VAL);
  }
  return share;
}

}  // namespace rivulet
