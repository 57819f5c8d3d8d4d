// SPDX-License-Identifier: Apache-2.0
// The likely meaning of a misspelt name, for messages about flags, commands and settings.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace rivulet {

// "; did you mean A, B or C?"
std::string DidYouMean(const std::vector<std::string>& names);

// "; did you mean NAME?" with the most similar name of `names`; "" if no name is similar to `word`,
// which means that more than a third of the longer word would have to change.
std::string Suggestion(absl::string_view word, const std::vector<std::string>& names);

// The first argument like "--flag" or "-f" that is no flag; "" if there is none. `takes_value`:
// whether a flag takes a value; nullopt: it is no flag.
std::string UnknownFlag(const std::vector<std::string>& args,
                        absl::FunctionRef<std::optional<bool>(const std::string&)> takes_value);

// What other programs call a flag: "-p" is "--prompt". Suggested are all flags of the list that a
// parser has; their values may follow.
using OtherNames = std::map<std::string, std::vector<std::string>>;

struct UnknownOption {
  std::string flag;   // of UnknownFlag
  std::string meant;  // "; did you mean --prompt?"
};
// The unknown option of a parser, an App of CLI11. CLI11 itself reports unknown flags last, after
// missing required options, and names their values, too. Options without a group are hidden, so
// they are not suggested.
template <class App>
UnknownOption FindUnknownOption(const App& parser, const std::vector<std::string>& args,
                                const OtherNames& others) {
  const auto takes_value = [&parser](const std::string& name) {
    const auto* const option = parser.get_option_no_throw(name);
    return option == nullptr ? std::nullopt : std::optional(option->get_items_expected_min() > 0);
  };
  std::vector<std::string> flags;
  const auto add_flags = [&flags](const App& app) {
    for (const auto* const option : app.get_options()) {
      if (!option->get_group().empty()) flags.push_back(option->get_name());
    }
  };
  add_flags(parser);
  // Groups of options are parsers without a name.
  const auto is_group = [](const App* app) { return app->get_name().empty(); };
  for (const App* const group : parser.get_subcommands(is_group)) add_flags(*group);
  const std::string flag = UnknownFlag(args, takes_value);
  if (const auto other = others.find(flag); other != others.end()) {
    std::vector<std::string> meant = other->second;
    std::erase_if(meant, [&](const std::string& name) {
      return std::find(flags.begin(), flags.end(), name.substr(0, name.find(' '))) == flags.end();
    });
    if (!meant.empty()) return {flag, DidYouMean(meant)};
  }
  return {flag, Suggestion(flag, flags)};
}

}  // namespace rivulet
