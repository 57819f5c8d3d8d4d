// SPDX-License-Identifier: Apache-2.0
// What a misspelt name was meant to be, for messages about flags, commands and settings.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace rivulet {

// "; did you mean NAME?" with the name of `names` that is most like `word`; "" where none is like
// it: more than a third of the longer one would have to be typed otherwise.
std::string Suggestion(absl::string_view word, const std::vector<std::string>& names);

// The first argument that begins with "--" and is no flag; "" if there is none. `takes_value` says
// whether a flag takes a value, or nullopt for what is no flag.
std::string UnknownFlag(const std::vector<std::string>& args,
                        absl::FunctionRef<std::optional<bool>(const std::string&)> takes_value);

}  // namespace rivulet
