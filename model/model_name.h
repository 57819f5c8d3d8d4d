// SPDX-License-Identifier: Apache-2.0
// What a model may be called.
#pragma once

#include <algorithm>

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

}  // namespace rivulet
