// SPDX-License-Identifier: Apache-2.0
// What a model may be called.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace rivulet {

inline constexpr char kModelNamePattern[] = "[a-z0-9][a-z0-9._-]{0,63}";

// `name` matches the pattern: so it is one component of a path, and neither "." nor "..".
inline bool IsModelName(absl::string_view name) {
  const auto is_alnum = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return !name.empty() && name.size() <= 64 && is_alnum(name[0]) &&
         std::all_of(name.begin(), name.end(), [is_alnum](char c) {
           return is_alnum(c) || c == '.' || c == '_' || c == '-';
         });
}

// The name of a model in `directory` that says none: the last component of the path (of a Hugging
// Face cache, models--OWNER--NAME/snapshots/HASH, the repository's), lower case, other characters
// as '-', at most 64; "model" where nothing is left.
inline std::string NameOfDirectory(absl::string_view directory) {
  std::vector<absl::string_view> parts = absl::StrSplit(directory, '/', absl::SkipEmpty());
  if (parts.size() >= 3 && parts[parts.size() - 2] == "snapshots" &&
      absl::StartsWith(parts[parts.size() - 3], "models--")) {
    parts.resize(parts.size() - 2);
    parts.back() = parts.back().substr(parts.back().rfind("--") + 2);
  }
  std::string name;
  for (const char c : parts.empty() ? absl::string_view() : parts.back()) {
    const char lower = absl::ascii_tolower(static_cast<unsigned char>(c));
    const bool fits = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_';
    name += fits ? lower : '-';
  }
  name.erase(0, name.find_first_not_of("-._"));
  name = name.substr(0, 64);
  return IsModelName(name) ? name : "model";
}

}  // namespace rivulet
