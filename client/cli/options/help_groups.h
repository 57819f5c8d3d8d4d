// SPDX-License-Identifier: Apache-2.0
// The groups of flags in --help of `rivulet`, and so in docs/settings.md.
#pragma once

#include <string>

#include "CLI/CLI.hpp"

namespace rivulet {

// Moves the flags of `app` and of its commands to their groups; others stay among the Options.
void GroupFlags(CLI::App* app);

// The text of --help of the command that `app` has parsed, with an example on top. CLI11 leaves too
// many empty lines between groups.
std::string HelpText(const CLI::App& app);

}  // namespace rivulet
