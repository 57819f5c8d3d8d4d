// SPDX-License-Identifier: Apache-2.0
#include "model/model_name.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace rivulet {
namespace {

// Names of directories that may hold any model: mounts of containers, and commits.
bool SaysNothing(const std::string& name) {
  constexpr absl::string_view kPlaces[] = {"checkpoint", "checkpoints", "data",
                                           "model",      "models",      "weights"};
  constexpr size_t kCommit = 40;
  const bool is_commit =
      name.size() == kCommit && name.find_first_not_of("0123456789abcdef") == name.npos;
  return name.empty() || is_commit ||
         std::find(std::begin(kPlaces), std::end(kPlaces), name) != std::end(kPlaces);
}

std::string NameIn(const JsonValue& config, absl::string_view field) {
  const JsonValue* value = config.Find(field);
  return value != nullptr && value->kind == JsonValue::Kind::kString ? NameOfPath(value->text) : "";
}

}  // namespace

std::string NameOfPath(absl::string_view path) {
  std::vector<absl::string_view> parts = absl::StrSplit(path, '/', absl::SkipEmpty());
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
  return name.substr(0, 64);
}

ModelNameChoice ChooseModelName(const std::string& directory, const JsonValue& config) {
  // The directory behind "." and ".." has a name, too.
  std::error_code unknown;
  const std::filesystem::path whole = std::filesystem::absolute(directory, unknown);
  std::string name = NameOfPath(unknown ? directory : whole.lexically_normal().string());
  if (!SaysNothing(name)) return {std::move(name), "the directory"};
  name = NameIn(config, "_name_or_path");
  if (!SaysNothing(name)) return {std::move(name), "_name_or_path of config.json"};
  return {NameIn(config, "model_type"), "model_type of config.json"};
}

}  // namespace rivulet
