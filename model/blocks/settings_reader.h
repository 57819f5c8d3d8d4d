// SPDX-License-Identifier: Apache-2.0
// SettingsReader: typed access to the settings of a checkpoint's config.json, in which many may be
// missing and none may be passed over.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/base/strict_json.h"

namespace rivulet {

inline constexpr int64_t kMaxDimension = int64_t{1} << 24;

// `text` as JSON. A bare Infinity, which older versions of transformers write, counts as
// {"__float__": "Infinity"}, which newer ones write. Errors: INVALID_ARGUMENT (INVALID_CONFIG).
absl::StatusOr<JsonValue> ParseSettings(absl::string_view text);

// "NAME WHAT" about one setting: INVALID_ARGUMENT with reason INVALID_CONFIG, or UNSUPPORTED_MODEL
// where others know it and we do not.
absl::Status InvalidSetting(absl::string_view name, absl::string_view what);
absl::Status UnsupportedSetting(absl::string_view name, absl::string_view what);

// The `eos_token_id` of a config.json or generation_config.json, a number or a list; empty where
// there is none. Errors: INVALID_ARGUMENT (INVALID_CONFIG: no token id).
absl::StatusOr<std::vector<int32_t>> ParseEosTokenIds(const JsonValue& config, int vocab_size);

// Notes which settings were asked for. null counts as missing. Borrows the object. Thread: one.
class SettingsReader {
 public:
  explicit SettingsReader(const JsonValue& object) : object_(object) {}

  // Null where it is missing.
  const JsonValue* Find(absl::string_view name);
  // At least 1. Missing: `fallback`, or an error where that is 0.
  absl::Status Count(absl::string_view name, int fallback, int* out, int64_t most = kMaxDimension);
  absl::Status Bool(absl::string_view name, bool fallback, bool* out);
  // Above 0.
  absl::Status Positive(absl::string_view name, double fallback, double* out);
  // Refused unless missing or one of `allowed`.
  absl::Status OneOf(absl::string_view name, std::initializer_list<absl::string_view> allowed);
  // Refused unless missing or `value`.
  absl::Status Only(absl::string_view name, bool value);
  // Refused unless missing.
  absl::Status Absent(absl::string_view name);
  // Of no matter to us.
  void Harmless(std::initializer_list<absl::string_view> names);

  // Refuses the first setting that was not asked for, unless it is null or false. Call last.
  absl::Status CheckNoOthers() const;

 private:
  const JsonValue& object_;
  std::set<std::string, std::less<>> asked_;
};

}  // namespace rivulet
