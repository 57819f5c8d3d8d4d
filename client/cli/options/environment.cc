// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options/environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/base/program.h"

namespace rivulet {
namespace {

bool IsOneOf(absl::string_view word, std::initializer_list<absl::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool HasOption(std::span<const std::string> args, absl::string_view option) {
  return std::any_of(args.begin(), args.end(), [option](const std::string& arg) {
    return arg == option || absl::StartsWith(arg, absl::StrCat(option, "="));
  });
}

}  // namespace

CompletedArgs WithEnvironment(std::span<const std::string> args) {
  CompletedArgs completed{{args.begin(), args.end()}, {}};
  if (args.empty()) return completed;
  const bool one_model = IsOneOf(args[0], {"batch", "bench", "chat", "detokenize", "generate",
                                           "score", "sessions", "tokenize"});
  const bool any_model = IsOneOf(args[0], {"health", "load", "models"});
  if (!one_model && !any_model) return completed;
  // Options of `sessions ACTION` come after the action.
  size_t at = 1;
  const bool has_action = args.size() > 1 && !absl::StartsWith(args[1], "-");
  if (args[0] == "models" && has_action) return completed;
  if (args[0] == "sessions" && has_action) ++at;
  const auto add = [&](absl::string_view option, const char* variable) {
    const char* const value = std::getenv(variable);
    if (value == nullptr || *value == '\0') return false;
    const std::string arg = absl::StrCat(option, "=", value);
    completed.args.insert(completed.args.begin() + static_cast<std::ptrdiff_t>(at), arg);
    completed.added.push_back(absl::StrCat(arg, " (", variable, ")"));
    return true;
  };
  if (HasOption(args, "--model")) return completed;
  if (!HasOption(args, "--target") && !add("--target", "RIVULET_TARGET")) return completed;
  if (one_model && !HasOption(args, "--model-name")) add("--model-name", "RIVULET_MODEL");
  return completed;
}

std::vector<std::string> Pythons() {
  const char* const given = std::getenv("RIVULET_PYTHON");
  if (given != nullptr && *given != '\0') return {given};
  std::vector<std::string> found = {"python3", "/usr/bin/python3"};
  const std::string beside = ProgramFile().parent_path().parent_path() / "gateway/bin/python3";
  if (access(beside.c_str(), X_OK) == 0) found.insert(found.begin(), beside);
  return found;
}

}  // namespace rivulet
