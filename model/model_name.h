// SPDX-License-Identifier: Apache-2.0
// The names of models.
#pragma once

#include <algorithm>
#include <string>

#include "absl/strings/string_view.h"
#include "model/base/strict_json.h"

namespace rivulet {

inline constexpr char kModelNamePattern[] = "[a-z0-9][a-z0-9._-]{0,63}";

// Whether `name` matches the pattern. Such a name is one component of a path, and not "." or "..".
inline bool IsModelName(absl::string_view name) {
  const auto is_alnum = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return !name.empty() && name.size() <= 64 && is_alnum(name[0]) &&
         std::all_of(name.begin(), name.end(), [is_alnum](char c) {
           return is_alnum(c) || c == '.' || c == '_' || c == '-';
         });
}

// The last component of `path` as a name: in lower case, '-' for other characters, at most 64
// characters; in a cache of Hugging Face the name of the repository; "" if nothing is left.
std::string NameOfPath(absl::string_view path);

struct ModelNameChoice {
  std::string name;
  std::string source;  // its source, for logs
};

// The name of a model of the family, whose config.json, `config`, has no field for a name: the name
// of the directory, in lower case, with '-' for other characters. If that is not specific
// ("models", "data", a commit, ...), the last part of _name_or_path; if that is not specific
// either, the model_type. REQUIRES: the model_type is one of the family's.
ModelNameChoice ChooseModelName(const std::string& directory, const JsonValue& config);

}  // namespace rivulet
