// SPDX-License-Identifier: Apache-2.0
// The one table of settings: flags, keys of the JSON file and --help come from it.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "server/config/server_config.h"

namespace rivulet {

// Where a setting is kept.
using SettingMember =
    std::variant<std::vector<std::string> ServerConfig::*, std::string ServerConfig::*,
                 int ServerConfig::*, bool ServerConfig::*, std::optional<int> ServerConfig::*,
                 double ServerConfig::*, ContextChoice ServerConfig::*>;

// One setting: flag "--name" and JSON key "name".
struct Setting {
  const char* name;
  const char* type;  // shown in --help
  const char* help;
  SettingMember member;
  std::vector<std::string> choices = {};  // for std::string; empty: free
  // For numbers; the nullopt of std::optional<int> is "auto".
  int min = 0, max = 0;
  const char* group = "";  // its title in --help and in docs/settings.md
};

// All, in the order of --help.
const std::vector<Setting>& Settings();

// Settings of before, as {name, what became of the setting}. They are refused with that until the
// release after 0.1.
inline constexpr const char* kFormerSettings[][2] = {
    {"max-sessions", "this setting was renamed; it is now slots"},
    {"max-client-sessions", "this setting was renamed; it is now max-open-sessions"},
    {"plan", "this setting was removed; steps on CUDA run as CUDA graphs"}};

// Choices that settings had before, as {setting, choice}. They are refused by name, too.
inline constexpr const char* kRemovedChoices[][2] = {{"products", "cublaslt"}};

}  // namespace rivulet
